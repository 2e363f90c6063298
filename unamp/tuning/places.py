"""The places of a network: the operations in layers that a search may hold in float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unamp.adapter.records import OpRecord
from unamp.dtypes import FLOAT32
from unamp.layers.applying import LayerNames
from unamp.policy import Policy, Rule

#: The kinds of unit: an operation in a layer, an operation wherever it is, or a layer with all the
#: operations that it runs itself.
BY = ("place", "operation", "layer")


class Place(NamedTuple):
    """An operation in a layer.

    Attributes:
        layer: the layer's name in a trace, without the network's class; ``""`` outside of named
            layers.
        op: the operation's canonical name.
    """

    layer: str
    op: str

    def __str__(self) -> str:
        return f"{self.op} in {self.layer}" if self.layer else self.op


#: The places that are held or given back together.
Unit = frozenset[Place]


def place_of(record: OpRecord, names: LayerNames) -> Place:
    """Return the place where an operation ran.

    Args:
        names: the network's layers. For a function, whose layers are named scopes, the names have
            no classes.
    """
    if not names.classes:
        return Place(_scope((record.layer or "").split("."), names.first), record.op)
    kind, _, name = (record.layer or "").partition(".")
    if kind not in names.classes:
        return Place("", record.op)
    # A wrapper for data-parallel training holds the network under a name of its own, which comes
    # first in the layer's name.
    found = names.first.get(name) or names.first.get(name.partition(".")[2])
    return Place(found or "", record.op)


def _scope(path: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the layer that named scopes stand for; ``""`` for none.

    A trace also has the scopes around the function's call, and some of JAX' own.
    """
    inner = (
        ".".join(path[start:end])
        for start in range(len(path))
        for end in range(len(path), start, -1)
    )
    return next((name for name in inner if name in names), "")


#: The rules under which an operation runs low, or stays low.
_LOW = (Rule.LOW, Rule.WIDEST, Rule.NARROWEST)


def low_places(records: Iterable[OpRecord], dtype: str, names: LayerNames) -> list[Place]:
    """Return the places that ran low under a policy, in the order in which they first ran."""
    ran = (record for record in records if record.computed_in == dtype and record.rule in _LOW)
    return list(dict.fromkeys(place_of(record, names) for record in ran))


def places_to_be_low(records: Iterable[OpRecord], policy: Policy, names: LayerNames) -> list[Place]:
    """Return the places of a float32 run that would be low under a policy."""
    ran = (
        record
        for record in records
        if record.compute == FLOAT32 and policy.decide(record.op) in _LOW
    )
    return list(dict.fromkeys(place_of(record, names) for record in ran))


def units_of(places: Sequence[Place], by: str) -> list[Unit]:
    """Return the places, in their order, as the units that are held together.

    Args:
        by: one of `BY`.
    """
    groups: dict[object, set[Place]] = {}
    for place in places:
        key: object = {"place": place, "operation": place.op, "layer": place.layer}[by]
        groups.setdefault(key, set()).add(place)
    return list(map(frozenset, groups.values()))
