"""An operation as MindSpore's code calls it.

Every function, method, primitive and layer of MindSpore that the vocabulary names is one operation:
its own rule holds for everything inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from unamp._function_types import Args, Function
from unamp.adapter import performing
from unamp.vocabulary import vocabulary
from unamp_mindspore.facts import facts
from unamp_mindspore.state import Tensor


class Operator(performing.Operator):
    """One operation; see `unamp.adapter.performing.Operator`.

    Attributes:
        ops: the operations that it may be; more than one where one function does several.
        casts: whether it is an explicit cast, which no rule changes.
        changing: whether it changes its first tensor, which others of the same operation do not.
        plain: whether no attribute here or in the base class makes it special, so that
            `calls.carry_out` may apply its rule without the performer.
    """

    __slots__ = ("casts", "changing", "ops", "plain")

    op: str

    def __init__(
        self, op: str, name: str, call: Function, *, ops: Iterable[str] = (), **kinds: Any
    ) -> None:
        super().__init__(op, name, call, view=op in facts().views, **kinds)
        self.ops = frozenset((op, *ops))
        self.casts = vocabulary()[op].group == "cast"
        self.changing = name in facts().changing
        special = (
            self.layer
            or self.in_place
            or self.which is not None
            or self.activation_only
            or self.view
            or self.casts
        )
        self.plain = not (special or self.changing)

    def parameters(self, args: Args) -> Mapping[int, Tensor]:
        return parameters_of(args[0]) if self.layer else {}


def parameters_of(cell: nn.Cell) -> Mapping[int, Tensor]:
    """Return the parameters of a cell and of the cells inside it, by their ids."""
    found = {}
    for _, home in cell.cells_and_names():
        # Python finds an attribute of the same name before the parameter, so the cell uses that.
        own = vars(home)
        held = [own.get(name, value) for name, value in home._params.items()]
        for value in (
            *held,
            *(each for group in own.values() if isinstance(group, (tuple, list)) for each in group),
        ):
            if isinstance(value, Tensor):
                found[id(value)] = value
    return found
