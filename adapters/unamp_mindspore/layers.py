"""Rules for single cells.

A cell with a rule gets a class derived from its own, whose `__call__` runs in the rule's region.
The compiler does not run `__call__`. It reads `construct`, unchanged, from a cell that is bound to
the rule's policy (`unamp_mindspore.binding`).
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn

from unamp.adapter.layers import Layered, LayerRegion, derive, put_by_class
from unamp.errors import NotExpressible
from unamp_mindspore import compiling
from unamp_mindspore.binding import layer_rules


class MindSporeLayers(Layered):
    """See `unamp.adapter.layers.Layered`."""

    def inner(self, layer: nn.Cell) -> Iterable[tuple[str, nn.Cell]]:
        return ((name, each) for name, each in layer._cells.items() if each is not None)

    def runs(self, layer: nn.Cell) -> bool:
        return not isinstance(layer, (nn.CellList, nn.CellDict))

    def check(self, layer: nn.Cell, region: LayerRegion) -> None:
        if isinstance(layer, nn.Optimizer):
            raise NotExpressible(
                f"a {type(layer).__name__} is an optimizer, which follows no policy"
            )

    def put(self, layer: nn.Cell, region: LayerRegion | None) -> None:
        compiling.install()
        put_by_class(layer, region, lambda plain: derive(plain, "__call__"))
        layer_rules.put(layer, region)
