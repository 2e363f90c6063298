"""The dialects on MindSpore answer as the frameworks' own modules do.

MindSpore's dialect runs beside MindSpore's own; the other frameworks' examples run on its tensors.
"""

import math

import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn, ops
from spoken import error_of, paddles_example, paddles_scaler_says_what_to_use, torchs_example

import unamp
from unamp.dialects.keras.mixed_precision import LossScaleOptimizer
from unamp.dialects.mindspore import amp
from unamp.dialects.paddle import amp as paddle_amp
from unamp.dialects.torch import amp as torch_amp
from unamp.dialects.torch import cpu

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16


class Net(nn.Cell):
    def __init__(self, has_bias=True):
        super().__init__()
        np.random.seed(3)
        first, second = (
            Tensor(np.random.randn(*shape).astype("float32") * 0.3) for shape in ((8, 4), (1, 8))
        )
        self.one = nn.Dense(4, 8, weight_init=first, has_bias=has_bias)
        self.two = nn.Dense(8, 1, weight_init=second, has_bias=has_bias)
        self.norm = nn.LayerNorm((8,))

    def construct(self, x):
        return self.two(ops.tanh(self.norm(self.one(x))))


def array(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


# --- mindspore.amp beside MindSpore's own ---------------------------------------------------------


def _sgd(net):
    return nn.SGD(net.trainable_params(), 0.1)


MISTAKES = {
    "level": lambda amp: amp.auto_mixed_precision(Net(), "O4"),
    "network": lambda amp: amp.auto_mixed_precision(3, "O1"),
    "network at auto": lambda amp: amp.auto_mixed_precision(3, "auto"),
    "auto: dtype": lambda amp: amp.auto_mixed_precision(Net(), "auto", F32),
    "network at O0": lambda amp: amp.auto_mixed_precision(ops.relu),
    "dtype": lambda amp: amp.auto_mixed_precision(Net(), "O1", F32),
    "no dtype": lambda amp: amp.auto_mixed_precision(Net(), "O1", 3),
    "custom: network": lambda amp: amp.custom_mixed_precision(3, white_list=[nn.Dense]),
    "custom: no list": lambda amp: amp.custom_mixed_precision(Net()),
    "custom: two lists": lambda amp: amp.custom_mixed_precision(
        Net(), white_list=[], black_list=[]
    ),
    "custom: tuple": lambda amp: amp.custom_mixed_precision(Net(), white_list=(nn.Dense,)),
    "custom: number": lambda amp: amp.custom_mixed_precision(Net(), white_list=[3]),
    "custom: other class": lambda amp: amp.custom_mixed_precision(Net(), black_list=[int]),
    "custom: dtype": lambda amp: amp.custom_mixed_precision(
        Net(), white_list=[nn.Dense], dtype=F32
    ),
    "train: optimizer": lambda amp: amp.build_train_network(Net(), 3),
    "train: level": lambda amp: amp.build_train_network(Net(), _sgd(Net()), level="O4"),
    "train: no level": lambda amp: amp.build_train_network(Net(), _sgd(Net()), level=4),
    "train: boost": lambda amp: amp.build_train_network(Net(), _sgd(Net()), boost_level="O4"),
    "train: option": lambda amp: amp.build_train_network(Net(), _sgd(Net()), foo=1),
    "train: loss": lambda amp: amp.build_train_network(Net(), _sgd(Net()), 3),
    "train: manager": lambda amp: amp.build_train_network(Net(), _sgd(Net()), loss_scale_manager=3),
    "train: type": lambda amp: amp.build_train_network(
        Net(), _sgd(Net()), cast_model_type=mindspore.int32
    ),
    "train: norm": lambda amp: amp.build_train_network(Net(), _sgd(Net()), keep_batchnorm_fp32=3),
    "static: small": lambda amp: amp.StaticLossScaler(0.5),
    "static: word": lambda amp: amp.StaticLossScaler("many"),
    "static: flag": lambda amp: amp.StaticLossScaler(True),
    "dynamic: small": lambda amp: amp.DynamicLossScaler(0.5, 2, 2),
    "dynamic: factor 0": lambda amp: amp.DynamicLossScaler(2, 0, 2),
    "dynamic: factor 1.5": lambda amp: amp.DynamicLossScaler(2, 1.5, 2),
    "dynamic: window": lambda amp: amp.DynamicLossScaler(2, 2, 0),
    "manager: small": lambda amp: amp.DynamicLossScaleManager(0),
    "manager: factor": lambda amp: amp.DynamicLossScaleManager(2, 0),
    "manager: window": lambda amp: amp.DynamicLossScaleManager(2, 2, 0),
    "fixed: small": lambda amp: amp.FixedLossScaleManager(0),
    "abstract": lambda amp: amp.LossScaler(),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_what_mindspores_own_raises(name):
    own = error_of(lambda: MISTAKES[name](mindspore.amp))
    assert own is not None
    assert error_of(lambda: MISTAKES[name](amp)) is own


def test_what_is_mindspores_alone_says_what_to_use():
    with pytest.raises(unamp.NotExpressible, match="mindspore.amp.build_train_network"):
        amp.build_train_network(Net(), _sgd(Net()), boost_level="O1")


def test_the_lists_are_mindspores():
    assert amp.get_white_list() == mindspore.amp.get_white_list()
    assert amp.get_black_list() == mindspore.amp.get_black_list()


LISTS = [
    {"white_list": [nn.Dense]},
    {"white_list": [nn.Dense, nn.LayerNorm]},
    {"black_list": [nn.Dense]},
]


@pytest.mark.parametrize("lists", LISTS, ids=str)
def test_custom_lists_compute_what_mindspores_own_computes(lists):
    x = array(16, 4)
    own, found = (
        mindspore.amp.custom_mixed_precision(Net(), **lists)(x),
        amp.custom_mixed_precision(Net(), **lists)(x),
    )
    assert found.dtype == own.dtype == F32
    assert np.abs(found.asnumpy() - own.asnumpy()).max() <= np.spacing(
        np.float16(np.abs(own.asnumpy()).max())
    )
    assert (found.asnumpy() != Net()(x).asnumpy()).any()


LEVELS = ("O0", "O1", "O2", "O3", "auto")
CONVERSIONS = {
    **{
        level: lambda amp, net, level=level: amp.auto_mixed_precision(net, level)
        for level in LEVELS
    },
    "white": lambda amp, net: amp.custom_mixed_precision(net, white_list=[nn.Dense, ops.MatMul]),
    "black": lambda amp, net: amp.custom_mixed_precision(net, black_list=[nn.LayerNorm]),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"]
)
def test_networks_are_converted_where_they_are_as_mindspores_own_are(conversion, mode):
    """Both the given network and the returned one are converted; they share their parameters."""
    x = array(16, 4)
    exact = Net(has_bias=False)(x).asnumpy()

    def converted(amp):
        # no bias: MindSpore promotes its addition at "auto", and for unamp it is part of the layer
        net = Net(has_bias=False)
        mindspore.set_context(mode=mode)
        try:
            made = CONVERSIONS[conversion](amp, net)
            given, returned = net(x), made(x)
        finally:
            mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        shared = [
            one is other
            for one, other in zip(net.trainable_params(), made.trainable_params(), strict=True)
        ]
        changed = [bool((each.asnumpy() != exact).any()) for each in (given, returned)]
        return (
            made is net,
            shared,
            given.dtype,
            returned.dtype,
            changed,
            given.astype(F32).asnumpy(),
        )

    *own, known = converted(mindspore.amp)
    *ours, found = converted(amp)
    assert ours == own
    assert np.abs(found - known).max() <= 4 * np.spacing(np.float16(np.abs(known).max()))


def test_a_graph_that_was_compiled_before_its_network_was_converted_is_compiled_again(graph_mode):
    net = Net()
    assert net(array(16, 4)).dtype == F32
    amp.auto_mixed_precision(net, "O3")
    assert net(array(16, 4)).dtype == F16


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_train_network_converts_the_network_that_it_is_given_as_mindspores_own(level):
    def converted(amp):
        net = Net()
        before = net(array(16, 4)).asnumpy()
        amp.build_train_network(net, _sgd(net), nn.MSELoss(), level, loss_scale_manager=None)
        found = net(array(16, 4))
        return found.dtype, bool((found.asnumpy() != before).any())

    assert converted(amp) == converted(mindspore.amp)


def test_a_network_that_is_converted_again_has_the_last_lists():
    net = Net()
    amp.auto_mixed_precision(net, "O3", BF16)
    amp.auto_mixed_precision(net, "O2")
    assert net(array(16, 4)).dtype == F16
    with unamp.layer_policies(net, {":Net": "float32"}):
        assert net(array(16, 4)).dtype == F32
    assert net(array(16, 4)).dtype == F16


@pytest.mark.parametrize(
    "make", [lambda: amp.StaticLossScaler(8.0), lambda: amp.DynamicLossScaler(8.0, 2, 1)]
)
def test_a_bfloat16_region_leaves_a_scaler_as_it_is(make):
    """MindSpore's own scaler knows of no region: the loss is scaled, and the scale moves."""
    scaler, x = make(), array(3)
    with unamp.autocast(dtype="bfloat16", level="O3"):
        assert (scaler.scale(x).asnumpy() == x.asnumpy() * 8).all()
        assert (
            scaler.unscale(x * 1.0).astype(F32).asnumpy()
            == (x * 1.0).astype(BF16).astype(F32).asnumpy() / 8
        ).all()
        moved = scaler.adjust(amp.all_finite((x,)))
    assert scaler.scale_value == (16.0 if moved else 8.0)
    assert moved is isinstance(scaler, amp.DynamicLossScaler)


def operators(x):
    low = ops.matmul(x, x)
    return (
        low,
        ops.softmax(low),
        ops.relu(low),
        low + x,
        ops.cat((low, x)),
        ops.exp(low),
        ops.tanh(x),
        ops.prelu(x, x[0, :1]),
    )


class Operators(nn.Cell):
    def construct(self, x):
        return operators(x)


@pytest.mark.parametrize("make", [lambda: operators, Operators], ids=["function", "cell"])
@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"]
)
def test_the_level_auto_computes_in_the_dtypes_of_mindspores_own(make, mode):
    mindspore.set_context(mode=mode)
    try:
        own, ours = (
            mindspore.amp.auto_mixed_precision(make(), "auto"),
            amp.auto_mixed_precision(make(), "auto"),
        )
        if mode == mindspore.GRAPH_MODE and make is not Operators:
            own, ours = mindspore.jit(own), mindspore.jit(ours)
        known, found = own(array(4, 4)), ours(array(4, 4))
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert [each.dtype for each in found] == [each.dtype for each in known]
    assert {each.dtype for each in found} == {F16, F32}


def test_the_level_auto_in_bfloat16_which_mindspores_own_does_not_run_on_a_cpu():
    found = amp.auto_mixed_precision(Operators(), "auto", BF16)(array(4, 4))
    assert [each.dtype for each in found] == [BF16, F32, BF16, F32, F32, F32, F32, BF16]


@settings(deadline=None, max_examples=8)
@given(
    st.lists(st.booleans(), min_size=1, max_size=10),
    st.sampled_from([2, 3, 4]),
    st.integers(1, 3),
    st.sampled_from([1.0, 64.0]),
)
def test_after_any_sequence_the_scale_is_where_mindspores_own_is(finites, factor, window, start):
    """Only the result of `adjust` differs: MindSpore's own is True on an overflow, too."""
    own, ours = (
        mindspore.amp.DynamicLossScaler(start, factor, window),
        amp.DynamicLossScaler(start, factor, window),
    )
    x = Tensor(np.float32([0.5, 3.0]))
    for finite in finites:
        gradients = (x if finite else Tensor(np.float32([math.inf, 1.0])), x)
        answered, known = amp.all_finite(gradients), mindspore.amp.all_finite(gradients)
        assert answered.dtype == known.dtype == mindspore.bool_
        assert bool(answered) is bool(known) is finite
        assert own.adjust(known) is True
        assert ours.adjust(answered) is finite
        assert ours.scale_value == pytest.approx(float(own.scale_value.asnumpy()), rel=1e-6)
        assert ours.counter == int(own.counter.asnumpy())
        # MindSpore's own products are not compared: its compiled function can keep the scale of an
        # earlier scaler.
        assert (
            ours.scale((x, [x]))[1][0].asnumpy().tolist()
            == (x.asnumpy() * np.float32(ours.scale_value)).tolist()
        )
        np.testing.assert_allclose(
            ours.unscale((x,))[0].asnumpy(), x.asnumpy() / ours.scale_value, rtol=1e-6
        )


def test_the_static_scaler_is_mindspores():
    own, ours = mindspore.amp.StaticLossScaler(128), amp.StaticLossScaler(128)
    assert own.adjust(Tensor(False)) is ours.adjust(Tensor(False)) is False
    assert float(own.scale_value.asnumpy()) == ours.scale_value == 128.0
    np.testing.assert_array_equal(ours.scale(array(3)).asnumpy(), array(3).asnumpy() * 128)
    assert ours.scale(array(3).astype(F16)).dtype == F16


def test_all_finite_takes_bfloat16_which_mindspores_own_does_not():
    low = (Tensor(np.float32([1.0, 2.0])).astype(BF16),)
    assert error_of(lambda: bool(mindspore.amp.all_finite(low))) is not None
    assert bool(amp.all_finite(low))
    assert not bool(amp.all_finite((low[0], Tensor(np.float32([math.nan])).astype(BF16))))


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("manager", [None, (64.0, False)], ids=["unscaled", "fixed"])
def test_a_train_network_takes_the_steps_of_mindspores_own(level, manager):
    def trained(module):
        network = Net()
        # If no step can be dropped, MindSpore's optimizer unscales by itself.
        optimizer = nn.Momentum(
            network.trainable_params(), 0.05, 0.9, loss_scale=1.0 if manager is None else manager[0]
        )
        options = {
            "loss_scale_manager": manager
            if manager is None
            else module.FixedLossScaleManager(*manager)
        }
        train = module.build_train_network(network, optimizer, nn.MSELoss(), level, **options)
        return [
            float(train(array(16, 4, seed=step), array(16, 1, seed=9)).asnumpy())
            for step in range(3)
        ]

    assert trained(amp) == pytest.approx(trained(mindspore.amp), rel=5e-3)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "auto"])
def test_a_train_network_takes_the_same_steps_in_graph_mode(level):
    def trained(mode):
        network = Net()
        optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
        manager = amp.DynamicLossScaleManager(1024, 2, 2)
        mindspore.set_context(mode=mode)
        try:
            train = amp.build_train_network(
                network, optimizer, nn.MSELoss(), level, loss_scale_manager=manager
            )
            assert isinstance(train, nn.Cell)
            found = [train(array(16, 4, seed=step), array(16, 1, seed=9)) for step in range(3)]
            assert mindspore.get_context("mode") == mode
        finally:
            mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        return [float(loss.asnumpy()) for loss, *_ in found], [tuple(rest) for _, *rest in found]

    compiled, eager = trained(mindspore.GRAPH_MODE), trained(mindspore.PYNATIVE_MODE)
    assert compiled[0] == pytest.approx(eager[0], rel=1e-5)
    assert compiled[1] == eager[1]


@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"]
)
def test_mindspores_model_trains_a_train_network(mode):
    network, x, y = Net(), np.ones((3, 16, 4), "float32"), np.ones((3, 16, 1), "float32")
    mindspore.set_context(mode=mode)
    try:
        manager = amp.DynamicLossScaleManager(1024)
        train = amp.build_train_network(
            network, _sgd(network), nn.MSELoss(), "O2", loss_scale_manager=manager
        )
        batches = mindspore.dataset.NumpySlicesDataset((x, y), ["x", "y"])
        mindspore.train.Model(train).train(2, batches, dataset_sink_mode=False)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert (train.scaler.state_dict()["_growth_tracker"], train.scaler.skipped) == (6, 0)
    assert (
        np.abs(network(Tensor(x[0])).asnumpy() - 1).max()
        < np.abs(Net()(Tensor(x[0])).asnumpy() - 1).max()
    )


def test_a_train_network_is_a_cell_with_the_parameters_of_mindspores_own():
    def named(module):
        network = Net()
        train = module.build_train_network(
            network, nn.Momentum(network.trainable_params(), 0.1, 0.9), nn.MSELoss(), "O0"
        )
        return train, [parameter.name for parameter in train.get_parameters()], train.training

    train, *found = named(amp)
    assert found == list(named(mindspore.amp)[1:])
    with pytest.raises(unamp.NotExpressible, match="as in PyNative mode"):
        mindspore.jit(train)(array(16, 4), array(16, 1))


def test_a_train_network_with_a_scale_that_moves():
    """The dialect trains on the CPU, too, where MindSpore's own raises."""
    network = Net()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    assert (
        error_of(lambda: mindspore.amp.build_train_network(Net(), optimizer, nn.MSELoss(), "O2"))
        is ValueError
    )
    manager = mindspore.amp.DynamicLossScaleManager(1024, 2, 2)  # MindSpore's own will do
    train = amp.build_train_network(
        network, optimizer, nn.MSELoss(), "O2", loss_scale_manager=manager
    )
    x, y = array(16, 4), array(16, 1, seed=9)
    results = [train(x, y) for _ in range(3)]
    assert [(overflow, scale) for _, overflow, scale in results] == [
        (False, 1024.0),
        (False, 1024.0),
        (False, 2048.0),
    ]
    before = [p.asnumpy().copy() for p in network.trainable_params()]
    assert train(x * math.inf, y)[1:] == (True, 2048.0)
    assert all(
        np.array_equal(a, b.asnumpy())
        for a, b in zip(before, network.trainable_params(), strict=True)
    )
    assert (train.scaler.get_scale(), train.scaler.skipped) == (1024.0, 1)
    assert (
        amp.build_train_network(
            Net(), optimizer, level="O3", cast_model_type=F32, keep_batchnorm_fp32=True
        )._low
        is not None
    )


# --- the other frameworks' examples ---------------------------------------------------------------


def test_paddles_examples():
    paddles_example("mindspore", nn.Conv2d(3, 2, 3), array(10, 3, 32, 32), array(2, 3), array(2, 3))
    paddles_scaler_says_what_to_use(array(), _sgd(Net()))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_paddles_decorate(dtype):
    network = nn.SequentialCell(
        nn.Dense(4, 8), nn.LayerNorm((8,)), nn.BatchNorm1d(8), nn.Dense(8, 1)
    )
    optimizer = nn.Adam(network.trainable_params(), 0.05)
    assert paddle_amp.decorate(network, optimizer, level="O2", dtype=dtype) == (network, optimizer)
    norm = F32 if dtype == F16 else BF16  # as in Paddle
    assert [p.dtype for p in network.trainable_params()] == [
        dtype,
        dtype,
        norm,
        norm,
        F32,
        F32,
        dtype,
        dtype,
    ]
    manager = amp.DynamicLossScaleManager(1024)
    train = amp.build_train_network(
        network, optimizer, nn.MSELoss(), "O2", loss_scale_manager=manager
    )
    losses = [float(train(array(16, 4), array(16, 1, seed=9))[0].asnumpy()) for _ in range(15)]
    assert losses[-1] < losses[0] / 2


def test_torchs_examples():
    torchs_example("mindspore", ops.mm, *(array(8, 8, seed=seed) for seed in range(4)))
    with cpu.amp.autocast():
        assert nn.Conv2d(64, 128, 3, stride=2)(array(2, 64, 14, 14)).dtype == BF16
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    optimizer, scaler = nn.SGD([w], 0.5), torch_amp.GradScaler("cpu", 8.0)
    gradients = mindspore.grad(lambda: scaler.scale((w * 2).sum()), None, [w])()
    scaler.step(optimizer, gradients=gradients)
    scaler.update()
    np.testing.assert_array_equal(w.asnumpy(), np.zeros(3))
    with pytest.raises(
        TypeError, match=r"use unamp.GradScaler, whose unscale_\(optimizer, gradients\)"
    ):
        scaler.unscale_(optimizer)


def test_kerass_loss_scale_optimizer():
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    optimizer = LossScaleOptimizer(nn.SGD([w], 0.5), initial_scale=8.0, dynamic_growth_steps=2)
    gradients = mindspore.grad(lambda: optimizer.scale_loss((w * 2).sum()), None, [w])()
    optimizer.apply(gradients, [w])
    np.testing.assert_array_equal(w.asnumpy(), np.zeros(3))
    optimizer.apply_gradients([(Tensor(np.full(3, math.nan, "float32")), w)])
    np.testing.assert_array_equal(w.asnumpy(), np.zeros(3))
    assert optimizer.state_dict() == {
        "dynamic_scale": 4.0,
        "step_counter": 0,
        "dynamic_growth_steps": 2,
    }
