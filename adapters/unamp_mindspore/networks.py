"""A cell that computes under a policy by itself: called in PyNative mode, compiled, or as part of a graph.

Called, it opens a region. A graph that it is part of is compiled from the source of its `construct`, and knows no regions:
there MindSpore's own strategy does what the region would, or the graph is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mindspore import nn
from mindspore._c_expression import Cell_
from mindspore.ops.functional import mixed_precision_cast

from unamp._compiler_marks import not_compiled
from unamp.adapter import Adapter
from unamp.adapter.wrapping import with_method
from unamp.errors import NotExpressible
from unamp.networks import call_under, returns_float32
from unamp.policy import Policy
from unamp_mindspore.compiling import strategy
from unamp_mindspore.state import DTYPES, FLOAT32

__all__ = ["wrap"]


class _InGraphs:
    """The `construct` that a graph is compiled from."""

    unamp_network: Any
    unamp_low: Any

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        return mixed_precision_cast(FLOAT32, self.unamp_network(*mixed_precision_cast(self.unamp_low, inputs)))


class _AsTheyCome:
    """The same at O1, where inputs and results stay as they are."""

    unamp_network: Any

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        return self.unamp_network(*inputs)


class _Refused:
    """The `construct` that no graph can be compiled from."""

    @not_compiled(
        "this network of unamp.auto_mixed_precision cannot be part of a graph: MindSpore has no strategy for its policy "
        "(O1's results in float32, and bfloat16 on a CPU); use O2 or O3 with float16, or PYNATIVE_MODE without mindspore.jit"
    )
    def construct(self, *inputs: Any) -> None:
        """Never run, and never compiled."""


def wrap(adapter: Adapter, network: nn.Cell, policy: Policy) -> nn.Cell:
    """See `unamp.adapter.Adapter.wrap`."""
    again = partial(adapter.wrap, policy=policy)
    # The network as it is, which the strategy of a graph is attached to, without a trace of it on the network itself.
    inner = with_method(network, "__call__", lambda call, *args, **kw: call(*args, **kw), again, _begun)
    outer = with_method(
        network, "__call__", lambda _, *args, **kw: call_under(adapter, policy, inner, *args, **kw), again, _begun
    )
    try:
        type(inner).amp_strategy = strategy(policy)
        construct: Any = (_InGraphs if returns_float32(policy) else _AsTheyCome).construct
    except NotExpressible:
        construct = _Refused.construct
    kind: Any = type(outer)
    kind.construct, kind.unamp_network, kind.unamp_low = construct, inner, DTYPES[policy.dtype]
    return outer


def _begun(cell: Any) -> None:
    Cell_.__init__(cell, type(cell).__name__)  # the part of a cell that is C++
