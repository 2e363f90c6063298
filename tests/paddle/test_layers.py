"""`unamp.layer_policies` on Paddle keeps the promises of the module `ruled`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import paddle
import pytest
import ruled
from paddle import nn
from ruled import (
    BF16,
    EXPECTED,
    F32,
    LOW,
    RULE,
    test_promises,  # noqa: F401
)

import unamp
from unamp import NotExpressible


class Block(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if x.sum() > 1e9:  # to_static must convert this, also behind a rule
            x = x * 2
        return self.wi(x), self.wo(x)


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        a, b = self.blocks[0](x)
        c, d = self.blocks[1](x)
        return a, b, c, d


class _Overflows(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.LayerNorm(4), nn.Linear(4, 1)
        self.block.wo.weight.set_value(np.full((4, 4), 9000, "float32"))

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.block.wo(nn.functional.relu(self.block.wi(x)) + 4)))


def _losses(rules: Any) -> list[float]:
    paddle.seed(1)
    network = _Overflows()
    optimizer = paddle.optimizer.SGD(0.05, network.parameters())
    handle = unamp.layer_policies(network, rules) if rules else None
    losses = []
    for _ in range(4):
        with unamp.autocast(dtype="float16"):
            loss = ((network(OF.x) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    if handle:
        handle.remove()
    return losses


OF = ruled.Layers(
    Net,
    paddle.to_tensor(np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)),
    dtype=lambda tensor: str(tensor.dtype).removeprefix("paddle."),
    numbers=lambda tensor: tensor.astype("float32").numpy(),
    first="blocks.0",
    second="blocks.1",
    low=lambda tensor: tensor.astype("bfloat16"),
    losses=_losses,
)


@pytest.mark.parametrize("full_graph", [True, False])
def test_compiled_functions_follow_rules_put_on_and_removed_later(full_graph: bool) -> None:
    network = Net()

    def run(x: Any) -> Any:
        return network(x)

    compiled = paddle.jit.to_static(run, full_graph=full_graph)
    assert OF.dtypes(compiled) == [BF16] * 4
    for _ in range(2):
        with unamp.layer_policies(network, RULE):
            assert OF.dtypes(compiled) == EXPECTED
        assert OF.dtypes(compiled) == [BF16] * 4
    with unamp.layer_policies(network, RULE, result="low"):
        assert OF.dtypes(compiled) == [BF16] * 4
    assert OF.dtypes(compiled, region=False) == [F32] * 4
    with unamp.layer_policies(network, {"**.wi": LOW}):
        assert OF.dtypes(compiled, region=False) == [BF16, F32, BF16, F32]
    assert OF.dtypes(compiled, region=False) == [F32] * 4


def test_compiled_networks_in_place() -> None:
    network = paddle.jit.to_static(Net(), full_graph=True)
    with unamp.layer_policies(network, RULE):
        assert OF.dtypes(network) == EXPECTED
    with pytest.raises(NotExpressible, match="forward of its own, put on the instance"):
        unamp.layer_policies(network, {":Net": F32})


def test_saved_programs_have_the_rules(tmp_path: Any) -> None:
    network = Net()
    with unamp.layer_policies(network, {"**.wi": LOW}):
        paddle.jit.save(
            paddle.jit.to_static(network, full_graph=True),
            str(tmp_path / "net"),
            [paddle.static.InputSpec([2, 4])],
        )
    assert OF.dtypes(paddle.jit.load(str(tmp_path / "net")), region=False) == [BF16, F32, BF16, F32]


def test_copies_have_the_rule_and_their_own_parameters(pickled: Any) -> None:
    network = Net()
    rules = unamp.layer_policies(network, RULE)
    for made in (copy.deepcopy(network), *pickled(network)):
        made.blocks[0].wo.weight.set_value(np.zeros((4, 4), "float32"))
        assert OF.dtypes(made) == EXPECTED
        assert float(made.blocks[0].wo(OF.x).abs().max()) == 0
    rules.remove()
    assert OF.dtypes(network) == [BF16] * 4


def test_recomputation_and_decoration() -> None:
    from paddle.distributed.fleet.utils import recompute

    network = Net()
    with unamp.layer_policies(network, RULE):
        assert OF.dtypes(lambda x: recompute(network, x)) == EXPECTED
    rules = unamp.layer_policies(network, {":Net": F32})
    unamp.decorate(network, level="O2", dtype="bfloat16")
    assert OF.dtypes(network) == [F32] * 4
    rules.remove()
    assert OF.dtypes(network) == [BF16] * 4
    with unamp.layer_policies(network, {"**": F32}):
        # low parameters are widened, also without a region
        assert OF.dtypes(network, region=False) == [F32] * 4


def test_nothing_is_left_in_a_compiler() -> None:
    from unamp_paddle import patches

    network = Net()
    with unamp.layer_policies(network, RULE):
        assert patches.compilers.open == 1
    assert patches.compilers.open == 0
