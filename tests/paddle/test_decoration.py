"""`unamp.decorate` on Paddle gives low parameters and float32 master weights, also on the CPU."""

import copy

import numpy as np
import paddle
import pytest
from decorated import F32, loss_of, made, numbers, renamed, rounded, same, sgd, values, weights
from paddle import nn

import unamp


class Inner(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norms = nn.LayerList(
            [nn.BatchNorm1D(2), nn.SyncBatchNorm(2), nn.BatchNorm(2), nn.InstanceNorm1D(2)]
        )
        self.norms.extend([nn.LayerNorm(2), nn.GroupNorm(1, 2)])
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Conv1D(2, 2, 1))
        self.exact = self.create_parameter([2], dtype="float64")


def low(network, **kwargs):
    unamp.decorate(network, level="O2", dtype="bfloat16", **kwargs)
    return {
        name.rpartition(".")[0]
        for name, p in network.named_parameters()
        if p.dtype == paddle.bfloat16
    }


def test_what_stays_in_float32():
    assert low(Inner()) == {"norms.3", "norms.4", "norms.5", "deep.0.0", "deep.1"}
    assert low(Inner(), excluded_layers=nn.LayerNorm) == {
        "norms.3",
        "norms.5",
        "deep.0.0",
        "deep.1",
    }
    network = Inner()
    assert low(network, excluded_layers=[network.deep[0], nn.Conv1D]) == {
        "norms.3",
        "norms.4",
        "norms.5",
    }
    assert low(network := Inner(), excluded_layers=network) == set()
    assert network.exact.dtype == paddle.float64


class Tied(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding, self.frozen = nn.Embedding(5, 4), nn.Linear(4, 4)
        self.head = nn.Embedding(5, 4)
        self.head.weight = self.embedding.weight
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True

    def forward(self, x):
        return paddle.matmul(self.frozen(self.embedding(x)), self.head.weight, transpose_y=True)


def test_tied_and_frozen_parameters():
    network = Tied()
    optimizer, exact = sgd(network), numbers(network.embedding.weight)
    unamp.decorate(network, optimizer, "O2")
    assert network.head.weight is network.embedding.weight
    assert network.frozen.weight.dtype == paddle.float16
    assert list(optimizer._master_weights) == [network.embedding.weight.name]
    with unamp.autocast(dtype="float16", level="O2"):
        network(paddle.arange(5)).astype("float32").square().sum().backward()
    frozen, moved = values(network.frozen), np.float32(0.1) * numbers(network.head.weight.grad)
    optimizer.step()
    np.testing.assert_allclose(weights(optimizer, network)[0], exact - moved, rtol=1e-6, atol=1e-7)
    assert same(frozen, values(network.frozen))
    kept = Tied()
    unamp.decorate(kept, level="O2", excluded_layers=kept.head)
    assert kept.embedding.weight.dtype == F32


def test_copies_and_pickles_of_networks(pickled):
    network = made("conv")
    unamp.decorate(network, level="O2", save_dtype="float32")
    for other in (copy.deepcopy(network), *pickled(network)):
        assert type(other) is type(network)
        assert [p.dtype for p in other.parameters()] == [p.dtype for p in network.parameters()]
        assert {value.dtype for value in other.state_dict().values()} == {F32}
        other[1].weight.set_value(np.zeros(other[1].weight.shape, "float16"))
        other.set_state_dict(network.state_dict())
        assert same(values(other), values(network))


@pytest.mark.parametrize("save_dtype", [None, "float32"])
def test_programs_are_saved(tmp_path, save_dtype):
    network, x = made("conv"), paddle.rand([2, 16])
    unamp.decorate(network, level="O2", dtype="float16", save_dtype=save_dtype)
    network.eval()
    with unamp.autocast(level="O2", dtype="float16"):
        expected = network(x)
        paddle.jit.save(
            network,
            str(tmp_path / "network"),
            input_spec=[paddle.static.InputSpec([None, 16], "float32")],
        )
    found = paddle.jit.load(str(tmp_path / "network"))(x)
    np.testing.assert_allclose(
        found.astype("float32").numpy(), expected.astype("float32").numpy(), rtol=1e-2, atol=1e-2
    )
    assert {value.dtype for value in network.state_dict().values()} == (
        {paddle.float16, F32} if save_dtype is None else {F32}
    )


@pytest.mark.parametrize("save_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_saved_of_a_network(save_dtype):
    network = nn.LayerDict({"body": made("conv"), "other": nn.Linear(2, 2)})
    unamp.decorate(network["body"], level="O2", save_dtype=save_dtype)
    for name, value in network.state_dict().items():
        kept = "other" in name or name.endswith(("_mean", "_variance"))
        assert value.dtype == (F32 if kept else getattr(paddle, save_dtype)), name
    body = network["body"]
    before, state = values(body), {name: value.clone() for name, value in body.state_dict().items()}
    for parameter in body.parameters():
        parameter.set_value(paddle.zeros(parameter.shape, parameter.dtype))
    arrays = {name: value.numpy() for name, value in state.items()}
    for saved in (state, arrays) if save_dtype != "bfloat16" else (state,):  # NumPy has no bfloat16
        body.set_state_dict(saved)
        assert save_dtype == "bfloat16" or same(before, values(body))  # bfloat16 has fewer digits
    assert {p.dtype for p in body.parameters()} == {paddle.float16, F32}


def test_a_checkpoint_of_float32_training_can_be_continued():
    network, low = made(), made()
    optimizer, its = [
        paddle.optimizer.Adam(0.01, parameters=each.parameters()) for each in (network, low)
    ]
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    unamp.decorate(low, its, "O2")
    names = {
        old.name: new.name for old, new in zip(network.parameters(), low.parameters(), strict=True)
    }
    low.set_state_dict(network.state_dict())
    its.set_state_dict(renamed(optimizer.state_dict(), names))
    assert same(values(low), rounded(values(network), "float16"))
    loss_of(low, 0, level="O2", dtype="float16").backward()
    its.step()
    second = its._accumulators["beta1_pow_acc"][low[0].weight.name]
    assert second.item() == pytest.approx(0.9**3)


def test_a_bad_checkpoint_changes_nothing():
    network = made()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=network.parameters())
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    name, before = network[0].bias.name, weights(optimizer, network)
    for wrong, said in (
        ({name: paddle.zeros([3])}, r"has the shape \[3\], the parameter has \[32\]"),
        ({"w": 0}, "no parameter w"),
    ):
        with pytest.raises(ValueError, match=said):
            optimizer.set_state_dict(optimizer.state_dict() | {"master_weights": wrong})
    assert same(before, weights(optimizer, network))
    assert same(values(network), rounded(before, "float16"))


def test_sparse_gradients():
    network = nn.LayerList([nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)])
    optimizer = sgd(network, 1.0)
    unamp.decorate(network, optimizer, "O2")
    # the CPU has no kernel for low sparse gradients
    assert [p.dtype for p in network.parameters()] == [F32, paddle.float16, paddle.float16]
    before, scaler = weights(optimizer, network), unamp.GradScaler(16.0)
    scaler.scale(network[0](paddle.to_tensor([1, 1, 2])).sum()).backward()
    assert scaler.step(optimizer) is True
    moved = before[0] - weights(optimizer, network)[0]
    np.testing.assert_allclose(moved, np.outer([0, 2, 1, 0, 0], [1, 1, 1]), rtol=1e-6, atol=1e-6)
