"""The operations that a node of a graph may be, and the policies that may hold for it: by metadata, else by type and name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from unamp.layers.patterns import matches_names
from unamp.layers.rules import LayerRule
from unamp.lists import EVERYTHING
from unamp.onnx.operators import type_operations
from unamp.onnx.reading import Node
from unamp.policy import Policy
from unamp.precision import Precision
from unamp.typing import DtypeName
from unamp.vocabulary import vocabulary

__all__ = ["Layer", "layers", "matching_patterns", "operations", "policies"]

#: A layer's name, and the names of its class; None where nobody says of which class it is.
Layer = tuple[str, tuple[str, ...] | None]


def operations(node: Node) -> tuple[str, ...]:
    """Return the operations that a node may be; none where it is none of the vocabulary."""
    by_type = type_operations(node.domain, node.kind)
    if any(vocabulary()[op].keeps_its_meaning for op in by_type):
        return by_type  # it brings tensors into shape for the operation that it is part of
    head, _, rest = (node.classes or ("",))[-1].partition(".")
    exported = vocabulary().spelled("torch").get(rest.partition(".")[0]) if head == "aten" else None
    return by_type if exported is None else (exported,)


def layers(node: Node) -> list[Layer] | None:
    """Return the layers that a node is in, the innermost first; None where nobody says."""
    above: list[Layer] = []
    if node.scopes:
        for name, kind in zip(node.scopes[:-1], node.classes[:-1], strict=True):
            above.append((name, (kind, kind.rpartition(".")[2])))
        return above[::-1]
    if not node.name.startswith("/"):
        return None
    path: list[str] = []
    for part in node.name.split("/")[1:-1]:  # as PyTorch's older exporter names nodes: /blocks/blocks.0/wi/MatMul
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
        above.append((".".join(path), None))
    return above[::-1]


def policies(precision: Precision, around: list[Layer] | None) -> list[Policy]:
    """Return the policies that may hold in the innermost of some layers: one where the file says enough."""
    found: list[Policy] = []
    if around is None:
        found = [_policy(rule, precision.policy) for rule in precision.layers]
    for layer in around or ():
        for rule, certain in _matching(precision, layer):
            found.append(_policy(rule, precision.policy))
            if certain:
                return list(dict.fromkeys(found))
    return list(dict.fromkeys([*found, precision.policy]))


def matching_patterns(precision: Precision, layer: Layer) -> set[str]:
    """Return the patterns of the rules that match a layer, as far as anybody says."""
    return {rule.pattern for rule in precision.layers if matches_names(rule.pattern, *layer)}


def _matching(precision: Precision, layer: Layer) -> Iterator[tuple[LayerRule, bool]]:
    """Yield the rules that may be for a layer, the last first, each with whether it is one."""
    name, classes = layer
    for rule in reversed(list(precision.layers)):
        if matches_names(rule.pattern, name, classes):
            yield rule, classes is not None or ":" not in rule.pattern


def _policy(rule: LayerRule, around: Policy) -> Policy:
    return rule.policy if isinstance(rule.policy, Policy) else _float32(around.dtype)


@cache
def _float32(dtype: DtypeName) -> Policy:
    """Return the policy of a rule ``"float32"`` inside one of a dtype."""
    return Policy(dtype=dtype, deny=EVERYTHING)
