"""The dialects on Paddle answer as the frameworks' own modules do.

Paddle's dialect runs beside Paddle's own; the other frameworks' examples run on Paddle tensors.
"""

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.amp.auto_cast import amp_initialize
from paddle.nn import functional as F
from spoken import (
    error_of,
    mindspores_example,
    paddles_example,
    test_mindspores_scalers_on_gradients_that_are_values,  # noqa: F401
    torchs_example,
)

import unamp
from unamp.dialects.keras.mixed_precision import LossScaleOptimizer
from unamp.dialects.mindspore import amp as mindspore_amp
from unamp.dialects.paddle import amp
from unamp.dialects.torch import amp as torch_amp
from unamp.dialects.torch import cpu

F32, F16, BF16 = paddle.float32, paddle.float16, paddle.bfloat16


# --- paddle.amp beside Paddle's own ---------------------------------------------------------------

ARGUMENTS = [
    {"level": "O4"},
    {"level": "O3"},
    {"level": "O4", "enable": False},
    {"dtype": "float32"},
    {"level": "o2", "dtype": "BFLOAT16"},
    {"dtype": paddle.bfloat16},
    {"custom_white_list": ["conv2d"], "custom_black_list": ("conv2d", "exp")},
    {"custom_white_list": {"conv2d"}, "custom_black_list": {"conv2d"}, "enable": False},
    {"custom_white_list": {"tanh"}, "custom_black_list": {"conv2d"}},
    {"level": "OD"},
    {"level": "O0"},
    {"level": 2},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", ["auto_cast", "amp_guard"])
def test_a_region_takes_what_paddles_own_takes(name, arguments):
    def opened(module):
        with getattr(module, name)(**arguments):
            pass

    assert error_of(lambda: opened(amp)) is error_of(lambda: opened(paddle.amp))


def test_what_paddle_lists():
    own = paddle.amp.white_list()
    newer = {"linear_v2"} - own["float16"]["O1"]  # a kernel since Paddle 3.3
    assert {
        d: {level: names - newer for level, names in levels.items()}
        for d, levels in amp.white_list().items()
    } == own
    assert amp.black_list() == paddle.amp.black_list()
    for name in ("is_float16_supported", "is_bfloat16_supported"):
        assert getattr(amp, name)() is getattr(paddle.amp, name)()
        assert getattr(amp, name)("cpu") is getattr(paddle.amp, name)("cpu")
        ours, own = getattr(amp, name), getattr(paddle.amp, name)
        assert (
            error_of(lambda ours=ours: ours("tpu"))
            is error_of(lambda own=own: own("tpu"))
            is ValueError
        )
    assert amp.is_autocast_enabled() is paddle.amp.is_autocast_enabled() is False
    assert amp.get_autocast_dtype() == paddle.amp.get_autocast_dtype() == "float16"
    assert error_of(lambda: amp.decorate(paddle.nn.Linear(2, 2), level="O4")) is ValueError
    assert error_of(lambda: paddle.amp.decorate(paddle.nn.Linear(2, 2), level="O4")) is ValueError


def test_constructors_and_getters_are_paddles():
    for name in ("GradScaler", "AmpScaler"):
        ours, own = getattr(amp, name)(False), getattr(paddle.amp, name)(False)
        for getter in (
            "is_enable is_use_dynamic_loss_scaling get_init_loss_scaling state_dict"
        ).split():
            assert getattr(ours, getter)() == getattr(own, getter)()
        ours = getattr(amp, name)(True, 512, 3.0, 0.25, 7, 2, True)
        changes = {
            "init_loss_scaling": 64,
            "incr_ratio": 4.0,
            "decr_ratio": 0.5,
            "incr_every_n_steps": 9,
        }
        for key, value in (changes | {"decr_every_n_nan_or_inf": 3}).items():
            getattr(ours, f"set_{key}")(value)
            assert getattr(ours, f"get_{key}")() == value
        assert ours.get_scale() == 64.0
        for setter in ("set_incr_ratio", "set_decr_ratio"):
            assert error_of(lambda s=setter, own=own: getattr(own, s)(1.0)) is AssertionError
            assert error_of(lambda s=setter, ours=ours: getattr(ours, s)(1.0)) is AssertionError
        assert error_of(lambda name=name: getattr(amp, name)(incr_ratio=1.0)) is AssertionError
        assert error_of(lambda name=name: getattr(amp, name)(decr_ratio=1.0)) is AssertionError


@pytest.mark.parametrize("name", ["GradScaler", "AmpScaler"])
def test_a_scale_where_paddle_takes_a_switch_is_refused(name):
    make = getattr(amp, name)
    assert getattr(paddle.amp, name)(4096.0).get_init_loss_scaling() != 4096.0  # Paddle loses it
    for enable in (4096.0, 1, None, "cuda"):
        with pytest.raises(
            TypeError, match=r"enable must be True or False, not .*init_loss_scaling="
        ):
            make(enable)
    assert make(np.bool_(True), 4096.0).get_scale() == 4096.0


def test_what_is_changed_is_what_was_given():
    """Paddle's functions change networks and optimizers in place.

    They return the arguments in the form in which they were given.
    """
    for level in ("O1", "O2"):
        for own, ours in (
            (paddle.amp.decorate, amp.decorate),
            (paddle.amp.amp_decorate, amp.amp_decorate),
        ):
            for function in (own, ours):
                model, other = paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)
                optimizer = paddle.optimizer.SGD(parameters=model.parameters())
                weight = other.weight
                assert function(other, level=level) is other
                assert other.weight is weight
                found, stepped = function([model], [optimizer], level)
                assert (type(found), type(stepped)) == (list, list)
                assert found[0] is model
                assert stepped[0] is optimizer
    # Also without using the result, the network is low.
    model = paddle.nn.Linear(2, 2)
    amp.decorate(model, level="O2", dtype="bfloat16")
    assert model.weight.dtype == BF16


def test_what_a_scaler_that_is_off_returns_is_what_it_was_given():
    for module in (amp, paddle.amp):
        scaler, loss = module.GradScaler(False), paddle.ones([1])
        assert scaler.scale(loss) is loss
        assert scaler.state_dict() == {}
        scaler.load_state_dict({})
    assert error_of(lambda: amp.GradScaler().load_state_dict({})) is RuntimeError


@pytest.mark.parametrize("name", ["GradScaler", "AmpScaler"])
def test_a_scaler_goes_on_scaling_in_a_region_in_bfloat16(name):
    # There Paddle's own scaler switches itself off for good.
    scaler = getattr(amp, name)(init_loss_scaling=1024.0)
    with amp.auto_cast(dtype="bfloat16"):
        assert float(scaler.scale(paddle.ones([]))) == 1024.0
    assert scaler.is_enable()
    with amp.auto_cast():
        assert float(scaler.scale(paddle.ones([]))) == 1024.0


def test_positional_arguments_go_where_paddles_go():
    with amp.auto_cast(True, ["tanh"], ["matmul"], "O2", "bfloat16", False):
        x = paddle.ones([2, 2])
        assert [F.tanh(x).dtype, paddle.matmul(x, x).dtype, (x + x).dtype] == [BF16, F32, BF16]
    with amp.autocast("gpu", "bfloat16", True, False):
        assert amp.get_autocast_dtype() == "bfloat16"
    with amp.autocast("cpu", "bfloat16", False):
        assert not amp.is_autocast_enabled()
    model = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    amp.decorate(model, optimizer, "O2", "bfloat16", True, "float32", False, [paddle.nn.Conv2D])
    assert model.weight.dtype == BF16
    assert model.state_dict()["weight"].dtype == F32


def own_scaler(**rules):
    """Return Paddle's own scaler, which is off on the CPU, switched on by hand.

    Its state machine then works. Its scale must be a number without dimensions. Paddle makes a
    tensor with one dimension, of which `_update` takes `float()` on an overflow. NumPy 2.4 refuses
    that, and the overflow would not be counted.
    """
    names = (
        "init_loss_scaling",
        "incr_ratio",
        "decr_ratio",
        "incr_every_n_steps",
        "decr_every_n_nan_or_inf",
    )
    scaler = paddle.amp.GradScaler(enable=False)
    for name in names:
        setattr(scaler, f"_{name}", rules[name])
    scaler._enable = scaler._use_dynamic_loss_scaling = True
    scaler._incr_count = scaler._decr_count = 0
    scaler._scale = paddle.to_tensor(rules["init_loss_scaling"], dtype="float32")
    return scaler


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(2.0, 0.5), (3.0, 0.25), (1.5, 0.8)]),
)
def test_after_any_sequence_the_scale_is_where_paddles_own_is(overflows, good, bad, ratios):
    rules = {
        **dict(zip(("incr_ratio", "decr_ratio"), ratios, strict=True)),
        "init_loss_scaling": 1024.0,
        "incr_every_n_steps": good,
        "decr_every_n_nan_or_inf": bad,
    }
    own, ours = own_scaler(**rules), amp.GradScaler(**rules)
    w = paddle.create_parameter(
        [2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0)
    )
    optimizer = paddle.optimizer.SGD(0.125, parameters=[w])
    steps = 0
    for overflow in overflows:
        ours.scale((w * (math.inf if overflow else 0.25)).sum()).backward()
        assert ours.step(optimizer) is ours.update() is None
        optimizer.clear_grad()
        own._cache_found_inf = overflow
        own._update()
        # Paddle multiplies in float32; unamp rounds the exact product to float32, as torch does.
        assert ours.get_scale() == pytest.approx(own._scale.item(), rel=1e-6)
        assert (ours.state_dict()["incr_count"], ours.state_dict()["decr_count"]) == (
            own._incr_count,
            own._decr_count,
        )
        steps += not overflow
        np.testing.assert_allclose(w.numpy(), 1 - 0.03125 * steps, rtol=1e-6)


def test_minimize_and_checkpoints():
    model = paddle.nn.Linear(3, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    scaler = amp.GradScaler(init_loss_scaling=1024)
    with amp.auto_cast():
        loss = model(paddle.rand([4, 3])).astype("float32").mean()
    scaled = scaler.scale(loss)
    scaled.backward()
    _, pairs = scaler.minimize(optimizer, scaled)
    assert len(pairs) == 2
    rules = {
        key: value for key, value in scaler.state_dict().items() if "ratio" in key or "every" in key
    }
    theirs = own_scaler(**rules, init_loss_scaling=1.0)
    theirs.load_state_dict(scaler.state_dict())
    assert (float(theirs._scale[0]), theirs._incr_count) == (1024.0, 1)
    again = amp.GradScaler()
    again.load_state_dict(theirs.state_dict())
    assert again.state_dict() == scaler.state_dict() == theirs.state_dict()
    assert scaler.state_dict()["scale"].dtype == theirs.state_dict()["scale"].dtype == np.float32
    assert again.get_init_loss_scaling() == 1024.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("excluded", [None, paddle.nn.Linear, [paddle.nn.BatchNorm1D]], ids=str)
def test_decorate_casts_the_parameters_that_paddles_own_casts(dtype, excluded):
    def made():
        layers = (
            paddle.nn.Linear(4, 8),
            paddle.nn.LayerNorm(8),
            paddle.nn.BatchNorm1D(8),
            paddle.nn.Linear(8, 2),
        )
        return paddle.nn.Sequential(*layers, paddle.nn.InstanceNorm1D(2))

    own, model = made(), made()
    # Paddle's `decorate` does this on a GPU, and not on the CPU.
    amp_initialize(models=[own], dtype=dtype, excluded_layers=excluded)
    optimizer = paddle.optimizer.AdamW(0.1, parameters=model.parameters())
    found = amp.decorate(model, optimizer, level="O2", dtype=dtype, excluded_layers=excluded)
    assert found == (model, optimizer)
    assert [p.dtype for p in model.parameters()] == [p.dtype for p in own.parameters()]
    assert amp.amp_decorate(made(), level="O1").parameters()[0].dtype == F32


def test_pure_float16_trains():
    model = paddle.nn.Sequential(
        paddle.nn.Linear(4, 8), paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 1)
    )
    model, optimizer = amp.decorate(
        model, paddle.optimizer.AdamW(0.05, parameters=model.parameters()), level="O2"
    )
    x, y, scaler, losses = (
        paddle.rand([16, 4]),
        paddle.rand([16, 1]),
        amp.GradScaler(init_loss_scaling=1024),
        [],
    )
    for _ in range(15):
        with amp.auto_cast(level="O2"):
            loss = F.mse_loss(model(x).astype("float32"), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert scaler.skipped == 0


# --- the documentation's examples -----------------------------------------------------------------


@pytest.mark.parametrize("bias", [None, False], ids=["bias", "no bias"])
def test_paddles_example(bias):
    conv2d, a, b = (
        paddle.nn.Conv2D(3, 2, 3, bias_attr=bias),
        paddle.rand([2, 3]),
        paddle.rand([2, 3]),
    )
    paddles_example("paddle", conv2d, paddle.rand([10, 3, 32, 32]), a, b)
    for level in ("O1", "O2"):
        with unamp.auto_cast(custom_white_list={"elementwise_add"}, level=level):
            assert paddle.add(a, b).dtype == a.add(b).dtype == F16


def test_paddles_operator_stats(capsys):
    conv2d = paddle.nn.Conv2D(3, 2, 3)
    x = paddle.rand([10, 3, 32, 32])
    with amp.debugging.collect_operator_stats() as stats, amp.auto_cast(enable=True, level="O2"):
        conv2d(x)
    rows = {
        line.split()[0]: line.replace("|", "").split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if "|" in line
    }
    assert rows["conv2d"] == ["1", "0", "0", "0"]
    assert stats["conv2d"] == {"float16": 1, "bfloat16": 0, "float32": 0, "other": 0}


def test_paddles_tensor_checker(capsys, tmp_path):
    debugging = amp.debugging
    network = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Softmax())
    x = paddle.to_tensor([[1.0, 1e5, 1.0, 1.0]])
    for name, enable in (("wide", False), ("low", True)):
        config = debugging.TensorCheckerConfig(
            True, paddle.amp.debugging.DebugMode.CHECK_NAN_INF, str(tmp_path / name)
        )
        debugging.enable_tensor_checker(config)
        with amp.auto_cast(enable):
            network(x)
        debugging.disable_tensor_checker()
    lines = capsys.readouterr().out.splitlines()
    assert ["op=linear, layer=Sequential.0, dtype=float16" in line for line in lines] == [
        True,
        False,
    ]
    debugging.compare_accuracy(
        str(tmp_path / "wide"), str(tmp_path / "low"), str(tmp_path / "found.txt")
    )
    assert "inf" in (tmp_path / "found.txt").read_text("utf-8")
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(True))
    with amp.auto_cast(), pytest.raises(RuntimeError, match="There are NAN or INF .*op=linear"):
        network(x)
    debugging.disable_tensor_checker()


def test_paddles_numbers_are_checked_by_paddle():
    debugging, infinite = amp.debugging, paddle.to_tensor([1.0, math.inf, math.nan, 0.0])
    counts, _ = debugging.check_numerics(
        infinite.astype("float16"), "exp", "x", debugging.DebugMode.CHECK_NAN_INF
    )
    assert counts.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="NAN or INF"):
        debugging.check_numerics(infinite, "exp", "x")

    class Layer(paddle.nn.Layer):
        @debugging.check_layer_numerics
        def forward(self, x):
            return 1 / x

    assert Layer()(paddle.ones([2])).tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="There are NAN or INF .*op=div"):
        Layer()(paddle.zeros([2]))


def test_torchs_examples():
    torchs_example("paddle", paddle.mm, *(paddle.rand([8, 8]) for _ in range(4)))
    with torch_amp.autocast("cpu", dtype="float16"):
        assert F.softmax(paddle.rand([8, 8])).dtype == F32
    model = paddle.nn.Conv2D(64, 128, (3, 3), stride=(2, 2), padding=(1, 1), bias_attr=False)
    optimizer = paddle.optimizer.SGD(0.001, parameters=model.parameters())
    scaler = torch_amp.GradScaler("cpu")
    with cpu.amp.autocast():
        y = model(paddle.rand([2, 64, 14, 14]))
        loss = y.astype("float32").mean()
    assert y.dtype == BF16
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 1


def test_regions_in_a_compiled_function():
    def product(x):
        with torch_amp.autocast("cpu"):
            return paddle.matmul(x, x)

    def again(x):
        with amp.auto_cast(dtype="bfloat16"):
            return paddle.matmul(x, x)

    x = paddle.rand([4, 4])
    for function in (product, again):
        assert paddle.jit.to_static(function)(x).dtype == function(x).dtype == BF16


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mindspores_example(level):
    network = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.ReLU(), paddle.nn.Softmax())
    mindspores_example(
        "paddle", network, paddle.rand([2, 8]), level, "bfloat16", {"relu", "linear"}
    )


def test_mindspores_train_network():
    model = paddle.nn.Sequential(
        paddle.nn.Linear(4, 8), paddle.nn.BatchNorm1D(8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1)
    )
    optimizer = paddle.optimizer.Momentum(0.05, parameters=model.parameters())
    x, y = paddle.rand([16, 4]), paddle.rand([16, 1])
    manager = mindspore_amp.DynamicLossScaleManager(1024, 2, 2)
    train = mindspore_amp.build_train_network(
        model, optimizer, F.mse_loss, "O2", loss_scale_manager=manager
    )
    results = [train(x, y) for _ in range(4)]
    assert [(overflow, scale) for _, overflow, scale in results] == [
        (False, s) for s in (1024, 1024, 2048, 2048)
    ]
    assert results[-1][0].item() < results[0][0].item()
    trained = [p for p in model.parameters() if not p.stop_gradient]
    before = [p.numpy() for p in trained]
    assert train(x * math.inf, y)[1:] == (True, 4096.0)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, trained, strict=True))
    plain = mindspore_amp.build_train_network(model, optimizer, F.mse_loss)
    assert plain(x, y).item() < results[0][0].item()


def test_kerass_loss_scale_optimizer():
    w = paddle.create_parameter(
        [3], "float32", default_initializer=paddle.nn.initializer.Constant(1.0)
    )
    optimizer = LossScaleOptimizer(
        paddle.optimizer.SGD(0.5, parameters=[w]), initial_scale=8.0, dynamic_growth_steps=1
    )
    optimizer.scale_loss((w * 2).sum()).backward()
    optimizer.apply([w.grad], [w])
    assert w.tolist() == [0.0] * 3
    optimizer.apply_gradients([(paddle.full([3], math.nan), w)])
    assert w.tolist() == [0.0] * 3
    assert optimizer.state_dict() == {
        "dynamic_scale": 8.0,
        "step_counter": 0,
        "dynamic_growth_steps": 1,
    }
