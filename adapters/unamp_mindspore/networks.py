"""Wrap a network as a cell that computes under a policy by itself, in any mode.

In PyNative mode a call of the cell opens a region. A graph is compiled from the source of the
cell's `construct`, and has no regions: there the network is bound to the policy.
"""

from __future__ import annotations

from functools import partial

from mindspore import nn
from mindspore._c_expression import Cell_
from mindspore.ops.functional import mixed_precision_cast

from unamp._function_types import Function
from unamp.adapter import Adapter
from unamp.adapter.wrapping import with_method
from unamp.networks import call_under, returns_float32
from unamp.policy import Policy
from unamp_mindspore.binding import POLICY
from unamp_mindspore.state import DTYPES, FLOAT32, Dtype


class _InGraphs:
    """The `construct` that a graph is compiled from."""

    unamp_network: nn.Cell
    unamp_low: Dtype

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        return mixed_precision_cast(
            FLOAT32, self.unamp_network(*mixed_precision_cast(self.unamp_low, inputs))
        )


class _AsTheyCome:
    """The same for levels under which inputs and results stay as they are."""

    unamp_network: nn.Cell

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        return self.unamp_network(*inputs)


def wrap(adapter: Adapter, network: nn.Cell, policy: Policy) -> nn.Cell:
    """See `unamp.adapter.Adapter.wrap`."""
    again = partial(adapter.wrap, policy=policy)
    # A copy that carries the policy for graphs: the user's network must not change.
    inner = with_method(
        network, "__call__", lambda call, *args, **kw: call(*args, **kw), again, _begun
    )
    outer = with_method(
        network,
        "__call__",
        lambda _, *args, **kw: call_under(adapter, policy, inner, *args, **kw),
        again,
        _begun,
    )
    setattr(type(inner), POLICY, policy)
    construct: Function = (_InGraphs if returns_float32(policy) else _AsTheyCome).construct
    kind: type[nn.Cell] = type(outer)
    kind.construct, kind.unamp_network, kind.unamp_low = construct, inner, DTYPES[policy.dtype]
    return outer


def _begun(cell: nn.Cell) -> None:
    Cell_.__init__(cell, type(cell).__name__)  # the part of a cell that is C++
