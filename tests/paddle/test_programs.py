"""Programs built by hand in static mode follow the region around their building."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from paddle.pir_utils import OldIrGuard

import unamp
from unamp import NotExpressible, Policy, policy_region

OFF = Policy(enabled=False)
RECURRENT = {"weight_ih": (24, 6), "weight_hh": (24, 6), "bias_ih": (24,), "bias_hh": (24,)}
X = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype("float32")


@pytest.fixture
def static():
    paddle.enable_static()
    yield
    paddle.disable_static()


class Network(paddle.nn.Layer):
    """A network whose parameters are the same in every mode."""

    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv2D(3, 4, 3, **_made(4, 4, 3, 3, 3))
        self.norm = paddle.nn.BatchNorm2D(4)
        self.linear = paddle.nn.Linear(6, 5, **_made(5, 6, 5))
        self.recurrent = paddle.nn.LSTM(
            6, 6, **{f"{name}_attr": _held(*shape) for name, shape in RECURRENT.items()}
        )

    def forward(self, x):
        h = F.relu(self.norm(self.conv(x))).mean(3)
        return F.softmax(self.linear(self.recurrent(h)[0]) * 2.0 + 1)


def _held(*shape):
    numbers = np.random.default_rng(shape).standard_normal(shape).astype("float32") / 3
    return paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(numbers))


def _made(biases, *weight):
    return {"weight_attr": _held(*weight), "bias_attr": _held(biases)}


def in_program(compute, policy, *, optimizer=None, runs=1):
    """Return the dtype in which a program computes, and the result of each run."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", X.shape, "float32")
            with policy_region(policy):
                found = compute(x)
            numbers = found.astype("float32")
            if optimizer is not None:
                optimizer(numbers.mean())
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(startup)
        return found.dtype, [
            executor.run(main, feed={"x": X}, fetch_list=[numbers])[0] for _ in range(runs)
        ]
    finally:
        paddle.disable_static()


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "rules",
    [{}, {"level": "O2"}, {"level": "O3"}, {"deny": ["conv2d", "softmax"]}, {"enabled": False}],
)
def test_a_program_computes_what_eager_mode_does(low, rules):
    policy = Policy(dtype=low, **rules)
    with policy_region(policy):
        expected = Network()(paddle.to_tensor(X))
    dtype, (found,) = in_program(lambda x: Network()(x), policy)
    assert dtype == expected.dtype
    np.testing.assert_allclose(found, expected.astype("float32").numpy(), rtol=1e-6, atol=1e-6)


def test_a_program_trains_as_eager_mode_does():
    network, expected = Network(), []
    optimizer = paddle.optimizer.Momentum(0.5, parameters=network.parameters())
    for _ in range(3):
        with policy_region(Policy(dtype="bfloat16")):
            found = network(paddle.to_tensor(X))
        expected.append(found.astype("float32"))
        (expected[-1] ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    def squared(x):
        return Network()(x).astype("float32") ** 2

    def momentum(loss):
        paddle.optimizer.Momentum(0.5).minimize(loss)

    _, steps = in_program(squared, Policy(dtype="bfloat16"), optimizer=momentum, runs=3)
    np.testing.assert_allclose(
        steps, [step.numpy() ** 2 for step in expected], rtol=1e-2, atol=1e-4
    )
    assert not np.array_equal(steps[0], steps[2])


def test_the_scale_is_a_part_of_the_program_with_paddles_own_scaler():
    def scaled(loss):
        optimizer = paddle.static.amp.decorate(
            paddle.optimizer.SGD(0.5), use_dynamic_loss_scaling=True
        )
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
        scaler.minimize(optimizer, scaler.scale(loss))

    def plain(loss):
        paddle.optimizer.SGD(0.5).minimize(loss)

    policy = Policy(dtype="float16")
    dtype, found = in_program(lambda x: Network().conv(x), policy, optimizer=scaled, runs=3)
    _, expected = in_program(lambda x: Network().conv(x), policy, optimizer=plain, runs=3)
    assert dtype == paddle.float16
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3)
    assert not np.array_equal(found[0], found[2])


@pytest.mark.usefixtures("static")
def test_regions_in_a_program():
    x = paddle.static.data("nested", [4, 4], "float32")
    with unamp.autocast(dtype="float16"):
        low = x @ x
        with unamp.autocast(enabled=False):
            off = x @ x
        with paddle.amp.auto_cast(False):
            paddles_off = x @ x
        with paddle.amp.auto_cast(dtype="bfloat16"):
            paddles = x @ x
        chosen = paddle.static.nn.cond(x.sum() > 0, lambda: x @ x, lambda: x @ low)
        _, summed = paddle.static.nn.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, h + F.softmax(h @ h)),
            [paddle.zeros([1], "int64"), x],
        )
        with (
            pytest.raises(unamp.BannedOperation),
            policy_region(Policy("O1", "float16", preset="torch-cuda")),
        ):
            F.binary_cross_entropy(F.sigmoid(x), x)
    with paddle.amp.auto_cast(dtype="bfloat16"), unamp.autocast(dtype="float16"):
        ours = x @ x
    dtypes = [each.dtype for each in (low, off, paddles_off, paddles, chosen, summed, ours)]
    assert [str(each).removeprefix("paddle.") for each in dtypes] == [
        "float16", "float32", "float32", "bfloat16", "float16", "float32", "float16",
    ]  # fmt: skip


def test_what_is_saved_carries_its_policy(tmp_path):
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(main, startup), unamp.autocast(dtype="bfloat16"):
            x = paddle.static.data("x", X.shape, "float32")
            network = Network()
            network.eval()
            found = network(x).astype("float32")
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(startup)
        (expected,) = executor.run(main, feed={"x": X}, fetch_list=[found])
        paddle.static.save_inference_model(
            str(tmp_path / "saved"), [x], [found], executor, program=main
        )
        program, _, results = paddle.static.load_inference_model(str(tmp_path / "saved"), executor)
        (loaded,) = executor.run(program, feed={"x": X}, fetch_list=results)
    finally:
        paddle.disable_static()
    np.testing.assert_allclose(loaded, expected, rtol=1e-6, atol=1e-6)
    layer = paddle.jit.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(layer(paddle.to_tensor(X)).numpy(), loaded)


@pytest.mark.usefixtures("static")
def test_what_needs_numbers_is_refused_in_words():
    network = paddle.nn.Linear(4, 4)
    optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
    with pytest.raises(
        NotExpressible, match=r"static mode .* level O2 or O3 .*paddle.disable_static"
    ):
        unamp.decorate(network, optimizer, level="O2", dtype="bfloat16")
    with pytest.raises(
        NotExpressible, match=r"paddle.amp.GradScaler with paddle.static.amp.decorate"
    ):
        unamp.GradScaler().scale(network(paddle.static.data("loss", [1, 4], "float32")).mean())


def test_the_old_ir_is_refused_in_words():
    with OldIrGuard(), paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [4, 4], "float32")
        with policy_region(OFF):
            assert (x @ x).dtype == x.dtype
        with (
            pytest.raises(NotExpressible, match=r"old IR .*Build them in PIR"),
            unamp.autocast(dtype="float16"),
        ):
            pass
        with pytest.raises(NotExpressible, match=r"paddle.static.amp.decorate"):
            unamp.GradScaler().scale(x.mean())
    with (
        unamp.autocast(dtype="float16"),
        OldIrGuard(),
        paddle.static.program_guard(paddle.static.Program()),
    ):
        x = paddle.static.data("x", [4, 4], "float32")
        for compute in (F.linear, lambda x, y: x @ y, lambda x, y: F.softmax(x)):
            with pytest.raises(NotExpressible, match=r"old IR .*Build them in PIR"):
                compute(x, x)
        with paddle.amp.auto_cast(False):
            pass
        with unamp.autocast(enabled=False):
            F.linear(x, x)
    with unamp.autocast(dtype="float16"):
        assert (paddle.rand([2, 2]) @ paddle.rand([2, 2])).dtype == paddle.float16


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_parameters_that_a_function_makes_are_float32(low, level, static):
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [4, 8])
        with policy_region(Policy(level, low)):
            loss = paddle.static.nn.fc(paddle.static.nn.fc(x, 8), 4, activation="relu").mean()
            clip = paddle.nn.ClipGradByGlobalNorm(1.0)
            paddle.optimizer.SGD(0.1, grad_clip=clip).minimize(loss)
    made = [
        op.result(0).dtype for op in program.global_block().ops if op.name() == "builtin.parameter"
    ]
    assert made == [paddle.float32] * 4  # two weights and two biases
