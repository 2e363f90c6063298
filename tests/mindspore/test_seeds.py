"""`auto_mixed_precision` runs as MindSpore documents it, and agrees with MindSpore's own."""

import copy

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import unamp

F32, F16 = mindspore.float32, mindspore.float16


class LeNet5(nn.Cell):
    """The network of MindSpore's documentation."""

    def __init__(self, num_class=10, num_channel=1):
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, num_class)
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


class Normed(nn.Cell):
    """A network with the layers on MindSpore's black list."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, has_bias=True)
        self.batch_norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm((32,))
        self.dense = nn.Dense(32, 8)

    def construct(self, x):
        x = self.layer_norm(self.batch_norm(self.conv(x)))
        return self.dense(ops.sigmoid(x))


class Dense(nn.Cell):
    """A network of matrix products and elementwise operations."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Dense(32, 16), nn.Dense(16, 8)

    def construct(self, x):
        return self.two(ops.tanh(ops.relu(self.one(x)) + 1.0))


NETWORKS = {kind.__name__: kind for kind in (LeNet5, Normed, Dense)}


def made(kind):
    np.random.seed(1)
    mindspore.set_seed(1)
    return NETWORKS[kind]()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # MindSpore's O1 writes the network that it makes into the current folder
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def x():
    return Tensor(np.random.default_rng(0).standard_normal((4, 1, 32, 32)).astype(np.float32))


@pytest.mark.parametrize("kind", list(NETWORKS))
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_beside_mindspores_own(x, kind, level):
    theirs = mindspore.amp.auto_mixed_precision(made(kind), level)(x)
    network = made(kind)
    ours = unamp.auto_mixed_precision(network, level)(x)
    assert ours.dtype == theirs.dtype == F32
    a, b = ours.asnumpy(), theirs.asnumpy()
    assert np.abs(a - b).max() <= np.spacing(np.float16(np.abs(b).max()))
    if level == "O0":
        np.testing.assert_array_equal(a, b)
    else:
        assert (a != network(x).asnumpy()).any()


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_beside_mindspores_own_in_graph_mode(graph_mode, x, level):
    # MindSpore's own has float16 kernels, which add in another order than the emulation.
    theirs = mindspore.amp.auto_mixed_precision(made("LeNet5"), level)(x)
    network = made("LeNet5")
    ours = unamp.auto_mixed_precision(network, level)(x)
    assert ours.dtype == theirs.dtype == F32
    a, b = ours.asnumpy(), theirs.asnumpy()
    assert np.abs(a - b).max() <= 2 * np.spacing(np.float16(np.abs(b).max()))
    assert (a != network(x).asnumpy()).any()


class Around(nn.Cell):
    """A network around a wrapped one."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return self.network(x) * 1.0


@pytest.mark.parametrize(
    ("level", "dtype"), [("O1", "float16"), ("O2", "float16"), ("O3", "bfloat16")]
)
def test_as_a_part_of_a_graph(graph_mode, x, level, dtype):
    network = made("Dense")
    wrapped = unamp.auto_mixed_precision(network, level, dtype)
    found, alone, plain = Around(wrapped)(x), wrapped(x), Around(network)(x)
    assert found.dtype == F32
    np.testing.assert_array_equal(found.asnumpy(), alone.asnumpy())
    np.testing.assert_array_equal(plain.asnumpy(), network(x).asnumpy())
    assert (found.asnumpy() != plain.asnumpy()).any()


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_bfloat16_which_mindspore_does_not_have_on_a_cpu(x, level):
    network = made("LeNet5")
    found = unamp.auto_mixed_precision(network, level, mindspore.bfloat16)(x)
    assert found.dtype == F32
    np.testing.assert_allclose(found.asnumpy(), network(x).asnumpy(), atol=0.02)
    assert (found.asnumpy() != network(x).asnumpy()).any()


def test_which_operations_run_low(x):
    ran = {}
    for level in ("O1", "O2", "O3"):
        with unamp.trace() as trace:
            unamp.auto_mixed_precision(made("Normed"), level)(x)
        ran[level] = {record.op: record.compute for record in trace.records}
    white = {"conv2d": "float16", "linear": "float16"}
    others = {"sigmoid": "float32"}
    norms = {"batch_norm": "float32", "layer_norm": "float32"}
    assert ran["O1"] == white | others | norms
    assert ran["O2"] == white | dict.fromkeys(others, "float16") | norms
    assert ran["O3"] == dict.fromkeys(white | others | norms, "float16")


def test_the_network_stays_a_network(x):
    network = made("LeNet5")
    names = [p.name for p in network.get_parameters()]
    wrapped = unamp.auto_mixed_precision(network, "O2")
    assert isinstance(wrapped, LeNet5)
    assert [p.name for p in wrapped.get_parameters()] == names == list(wrapped.parameters_dict())
    assert {p.dtype for p in wrapped.get_parameters()} == {F32}
    assert wrapped.conv1 is network.conv1
    wrapped.set_train()
    assert network.training
    gradients = mindspore.grad(lambda x: wrapped(x).sum(), None, wrapped.trainable_params())(x)
    assert {g.dtype for g in gradients} == {F32}
    found = copy.deepcopy(wrapped)
    assert found.conv1.weight is not network.conv1.weight
    np.testing.assert_array_equal(found(x).asnumpy(), wrapped(x).asnumpy())
    assert (network(x).asnumpy() != wrapped(x).asnumpy()).any()


@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["PyNative", "graph"]
)
def test_a_wrapped_network_is_trained(x, graph_mode, mode):
    mindspore.set_context(mode=mode)
    wrapped = unamp.auto_mixed_precision(made("LeNet5"), "O2")
    label = Tensor([1, 2, 3, 4], mindspore.int32)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    train = nn.TrainOneStepCell(
        nn.WithLossCell(wrapped, loss), nn.Momentum(wrapped.trainable_params(), 0.05, 0.9)
    )
    losses = [float(train(x, label).asnumpy()) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_bad_arguments():
    network = made("Dense")
    for level in ("O4", "auto", "OD", None):
        with pytest.raises(ValueError, match="valid: O0, O1, O2, O3"):
            unamp.auto_mixed_precision(network, level)
    for dtype in ("float64", "int8"):
        with pytest.raises(ValueError, match=dtype):
            unamp.auto_mixed_precision(network, "O1", dtype)
    for other in (ops.relu, LeNet5, 3):
        with pytest.raises(TypeError, match="mindspore.nn.Cell"):
            unamp.auto_mixed_precision(other, "O1")
    assert unamp.auto_mixed_precision(network) is network
