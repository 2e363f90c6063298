"""The shortest policy and rules for layers that hold a set of places in float32."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from unamp._grouping import grouped
from unamp.dtypes import FLOAT32
from unamp.layers.rules import LayerRule
from unamp.policy import Policy
from unamp.tuning.places import Place

_Inherited = frozenset[str] | None  # the operations that an outer rule denies; None: "float32"


def policy_and_rules(
    held: Collection[Place],
    places: Sequence[Place],
    layers: Iterable[str],
    base: Policy,
    unnamed: Collection[Place] = (),
) -> tuple[Policy, list[LayerRule]]:
    """Return the policy and the rules that hold some places in float32, and no other place.

    The policy denies an operation whose every place is held. A layer whose every operation is held
    gets the rule ``"float32"``. A rule also applies to the layers inside: an inner layer gets its
    own rule where the outer one would hold too much.

    Args:
        layers: the names of the layers that run, an outer one before those inside.
        base: the policy to use where nothing is held.
        unnamed: places that an operation's name does not hold, because a layer runs under another
            name; only the rule ``"float32"`` for the layer holds them.
    """
    at, wanted = _by_layer(places), _by_layer(held)
    everywhere = frozenset(held_everywhere(held, places)) - {place.op for place in unnamed}
    outside = everywhere | wanted.get("", set())
    found: dict[str, _Inherited] = {}
    rules = []
    for layer in layers:
        inherited = _inherited(layer, found, outside)
        own, held_here = at.get(layer, set()), wanted.get(layer, set())
        denied = (
            own
            if inherited is None
            else {op for op in own & inherited if (layer, op) not in unnamed}
        )
        if denied == held_here:
            continue
        inside = [
            place for place in places if place.layer == layer or place.layer.startswith(f"{layer}.")
        ]
        if held_here and all(place.op in wanted.get(place.layer, ()) for place in inside):
            found[layer] = None
            rules.append(LayerRule(layer, FLOAT32))
        else:
            found[layer] = everywhere | held_here
            rules.append(LayerRule(layer, _denying(base, everywhere | held_here)))
    return _denying(base, outside), rules


def _by_layer(places: Iterable[Place]) -> dict[str, set[str]]:
    """Return the operations of each layer."""
    return {
        layer: {place.op for place in inside}
        for layer, inside in grouped(places, lambda place: place.layer).items()
    }


def held_everywhere(held: Collection[Place], places: Iterable[Place]) -> list[str]:
    """Return the operations whose every place is held."""
    low = {place.op for place in places if place not in held}
    return sorted({place.op for place in held} - low)


def _inherited(layer: str, found: dict[str, _Inherited], outside: frozenset[str]) -> _Inherited:
    while layer:
        layer = layer.rpartition(".")[0]
        if layer in found:
            return found[layer]
    return outside


def _denying(base: Policy, ops: Iterable[str]) -> Policy:
    denied = {*base.deny, *ops}
    return base.replace(deny=sorted(denied), allow=[op for op in base.allow if op not in denied])
