"""Rules for single cells: in PyNative mode by the cell's call, in graphs by MindSpore's own strategy.

A cell with a rule gets a class derived from its own, whose `__call__` runs in the rule's region. The compiler does not run it:
it reads `construct`, which stays as it is, and finds the rule's strategy on the cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindspore import nn

from unamp.adapter.layers import LayerRegion, derive, put_by_class, region_of
from unamp.errors import NotExpressible
from unamp_mindspore import compiling
from unamp_mindspore.compiling import strategy
from unamp_mindspore.parsing import cell_checks, layer_rules

__all__ = ["MindSporeLayers"]


class MindSporeLayers:
    """See `unamp.adapter.layers.Layered`."""

    def unwrapped(self, network: nn.Cell) -> nn.Cell:
        return network

    def inner(self, layer: nn.Cell) -> Iterable[tuple[str, nn.Cell]]:
        return ((name, each) for name, each in layer._cells.items() if each is not None)

    def runs(self, layer: nn.Cell) -> bool:
        return not isinstance(layer, (nn.CellList, nn.CellDict))

    def check(self, layer: nn.Cell, region: LayerRegion) -> None:
        if isinstance(layer, nn.Optimizer):
            raise NotExpressible(f"a {type(layer).__name__} is an optimizer, which follows no policy")

    def put(self, layer: nn.Cell, region: LayerRegion | None) -> None:
        compiling.install()
        put_by_class(layer, region, _derived)
        layer_rules.put(layer, region)


class _Strategy:
    """The strategy of a cell's rule, for the compiler; an instance's own (of a graph's root) goes before it."""

    def __get__(self, cell: Any, kind: type) -> Any:
        region = None if cell is None else region_of(cell)
        if region is None:
            raise AttributeError("amp_strategy")
        return strategy(region.policy("float16"))


def _derived(plain: type) -> type:
    made: Any = derive(plain, "__call__")
    made.amp_strategy = _Strategy()
    return made  # type: ignore[no-any-return]


def _check_in_graph(cell: object) -> None:
    """Check, where the compiler reads a cell, that a graph can follow the cell's rule."""
    region = region_of(cell) if isinstance(cell, nn.Cell) else None
    if region is None:
        return
    try:
        if region.result is not None:
            raise NotExpressible('no strategy casts a result: leave result="low" out')
        strategy(region.policy("float16"))
    except NotExpressible as error:
        raise NotExpressible(f"this {type(cell).__name__} has a rule that no graph can follow: {error}") from error


cell_checks.append(_check_in_graph)
