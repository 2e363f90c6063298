"""`unamp.layer_policies` on MindSpore keeps the promises of `ruled`, also in graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import ruled
from mindspore import nn, ops
from ruled import (
    F32,
    RULE,
    test_promises,  # noqa: F401
)

import unamp
from unamp import NotExpressible, Policy

F16 = "float16"
LOW = Policy("O3", F16)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x: Any) -> Any:
        return self.wi(x), self.wo(x)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(), Block()])

    def construct(self, x: Any) -> Any:
        a, b = self.blocks[0](x)
        c, d = self.blocks[1](x)
        return a, b, c, d


class _Overflows(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.LayerNorm((4,)), nn.Dense(4, 1)
        self.block.wo.weight.set_data(ms.Tensor(np.full((4, 4), 9000, "float32")))

    def construct(self, x: Any) -> Any:
        return self.head(self.norm(self.block.wo(ops.relu(self.block.wi(x)) + 4)))


def _losses(rules: Any) -> list[float]:
    ms.set_seed(1)
    network = _Overflows()
    optimizer = nn.SGD(network.trainable_params(), 0.05)
    handle = unamp.layer_policies(network, rules) if rules else None

    def loss(x: Any) -> Any:
        with unamp.autocast(dtype=F16):
            # MindSpore's norm makes finite numbers of infinities, so the loss also takes the norm's
            # input.
            product = network.block.wo(ops.relu(network.block.wi(x)) + 4)
            return ((network.head(network.norm(product)) - 1) ** 2).mean() + 0 * product.astype(
                ms.float32
            ).sum()

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    losses = []
    for _ in range(4):
        value, gradients = step(OF.x)
        optimizer(gradients)
        losses.append(float(value))
    if handle:
        handle.remove()
    return losses


OF = ruled.Layers(
    Net,
    ms.Tensor(np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)),
    dtype=lambda tensor: str(tensor.dtype).lower(),
    numbers=lambda tensor: tensor.astype(ms.float32).asnumpy(),
    first="blocks.0",
    second="blocks.1",
    low=lambda tensor: tensor.astype(ms.bfloat16),
    losses=_losses,
)


@pytest.fixture(params=["jit", "GRAPH_MODE"])
def compiled(request: Any) -> Iterator[Any]:
    """Return a network, and a function that runs it as a graph."""
    network = Net()

    @ms.jit
    def run(x: Any) -> Any:
        return network(x)

    if request.param == "jit":
        yield network, run
        return
    ms.set_context(mode=ms.GRAPH_MODE)
    yield network, network
    ms.set_context(mode=ms.PYNATIVE_MODE)


def dtypes(run: Any) -> list[str]:
    with unamp.autocast(dtype=F16):
        return [OF.dtype(result) for result in run(OF.x)]


def test_graphs_follow_rules_put_on_and_removed_later(compiled: Any) -> None:
    network, run = compiled
    assert dtypes(run) == [F16] * 4
    for _ in range(2):
        with unamp.layer_policies(network, RULE):
            assert dtypes(run) == [F16, F32, F16, F32]
        assert dtypes(run) == [F16] * 4
    assert OF.dtypes(run, region=False) == [F32] * 4
    # The two products are of one type: the compiler must not reuse for the second what it knows of
    # the first.
    with unamp.layer_policies(network, {"**.wo": LOW}):
        assert OF.dtypes(run, region=False) == [F32, F16, F32, F16]
    assert OF.dtypes(run, region=False) == [F32] * 4


def test_numbers_of_graphs_are_those_of_pynative(compiled: Any) -> None:
    network, run = compiled
    with unamp.layer_policies(network, RULE), unamp.autocast(dtype=F16):
        found = [OF.numbers(result) for result in run(OF.x)]
        ms.set_context(mode=ms.PYNATIVE_MODE)
        exact = [OF.numbers(result) for result in network(OF.x)]
    for result, other in zip(found[1::2], exact[1::2], strict=True):
        np.testing.assert_array_equal(result, other)
    np.testing.assert_allclose(found[0], exact[0], atol=2e-3)


def test_a_rule_in_the_other_low_dtype(compiled: Any) -> None:
    network, run = compiled
    with unamp.layer_policies(network, {"**.wo": ruled.LOW}):
        assert OF.dtypes(run, region=False) == [F32, "bfloat16", F32, "bfloat16"]


def test_what_a_graph_cannot_it_refuses(compiled: Any) -> None:
    network, run = compiled
    with (
        unamp.layer_policies(network, RULE, result="low"),
        pytest.raises(NotExpressible, match="none casts a result"),
    ):
        dtypes(run)
    assert OF.dtypes(run, region=False) == [F32] * 4


def test_a_rule_on_the_whole_is_the_graphs(compiled: Any) -> None:
    network, run = compiled
    with unamp.layer_policies(network, {":Net": "float32", "blocks.0.wi": LOW}):
        assert dtypes(run) == [F16, F32, F32, F32]


def test_copies_have_the_rule_and_their_own_parameters() -> None:
    network = Net()
    rules = unamp.layer_policies(network, RULE)
    made = copy.deepcopy(network)
    made.blocks[0].wo.weight.set_data(ms.Tensor(np.zeros((4, 4), "float32")))
    assert dtypes(made) == [F16, F32, F16, F32]
    rules.remove()
    assert dtypes(made) == [F16, F32, F16, F32]
    assert dtypes(network) == [F16] * 4
    assert float(made.blocks[0].wo(OF.x).abs().max()) != float(
        network.blocks[0].wo(OF.x).abs().max()
    )
