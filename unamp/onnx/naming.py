"""The operations that a graph's node may be, and the layers and policies that it may be in.

They come from the metadata, else from the node's type and name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from unamp.layers.patterns import matches_names
from unamp.layers.rules import LayerRule
from unamp.lists import EVERYTHING
from unamp.onnx.casts import is_cast
from unamp.onnx.operators import type_operations
from unamp.onnx.reading import Graph, Node
from unamp.policy import Policy
from unamp.precision import Precision
from unamp.typing import DtypeName
from unamp.vocabulary import vocabulary

#: A layer's name, and the names of its class; None where the file does not say its class.
Layer = tuple[str, tuple[str, ...] | None]


def operations(node: Node) -> tuple[str, ...]:
    """Return the operations that a node may be; none where it is not in the vocabulary."""
    by_type = type_operations(node.domain, node.kind)
    if any(vocabulary()[op].keeps_its_meaning for op in by_type):
        return by_type  # it only shapes tensors for the operation that its label names
    head, _, rest = (node.classes or ("",))[-1].partition(".")
    exported = vocabulary().spelled("torch").get(rest.partition(".")[0]) if head == "aten" else None
    return by_type if exported is None else (exported,)


class Layers:
    """The layers of a graph's nodes, as far as its exporter names them, and their policies.

    Attributes:
        unmatched: the patterns of rules that have matched no layer of a node so far.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self._graph, self._precision = graph, precision
        self._owners = _owners(graph)
        self.unmatched = [rule.pattern for rule in precision.layers]

    def around(self, node: Node) -> list[Layer] | None:
        """Return the layers that a node is in, the innermost first; None where it is not known."""
        found = self._around(node)
        for name, classes in found or ():
            self.unmatched = [
                pattern for pattern in self.unmatched if not matches_names(pattern, name, classes)
            ]
        return found

    def policies(self, around: list[Layer] | None) -> list[Policy]:
        """Return the policies possible in the innermost layer; one where the file says enough."""
        precision = self._precision
        found: list[Policy] = []
        if around is None:
            found = [_policy(rule, precision.policy) for rule in precision.layers]
        for layer in around or ():
            for rule, certain in _matching(precision, layer):
                found.append(_policy(rule, precision.policy))
                if certain:
                    return list(dict.fromkeys(found))
        return list(dict.fromkeys([*found, precision.policy]))

    def _around(self, node: Node) -> list[Layer] | None:
        if node.scopes:
            labels = zip(node.scopes[:-1], node.classes[:-1], strict=True)
            labelled: list[Layer] = [
                (name, (kind, kind.rpartition(".")[2])) for name, kind in labels
            ]
            return labelled[::-1]
        found = _named(self._graph.producer, node.name)
        if found is None and (owner := self._owners.get(node.outputs)) is not None:
            found = _paths((name, None) for name in owner.split("."))
        return None if found is None else found[::-1]


def _named(producer: str, name: str) -> list[Layer] | None:
    """Return the layers in the name of a node, the outermost first; None where it has none."""
    if name.startswith("/"):
        return _in_torch(name.split("/")[1:-1])
    *scopes, last = name.split("/")
    if producer == "MindSpore" and scopes and "-op" in last:
        return _in_mindspore(scopes)
    return _in_keras(scopes) if producer == "tf2onnx" and scopes else None


def _in_torch(scopes: list[str]) -> list[Layer]:
    """Return the layers in a name by PyTorch's older exporter: ``/blocks/blocks.0/wi/MatMul``."""
    found: list[Layer] = []
    path: list[str] = []
    for part in scopes:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
        found.append((".".join(path), None))
    return found


def _in_mindspore(scopes: list[str]) -> list[Layer] | None:
    """Return the layers in a name by MindSpore's exporter.

    An example: ``13-Default/block-Block/norm-LayerNorm/TupleGetItem-op0``.
    """
    network, *cells = scopes
    if network.lstrip("0123456789") != "-Default" or not all("-" in cell for cell in cells):
        return None
    parts = [cell.rpartition("-") for cell in cells]
    return _paths((name, (kind,)) for name, _, kind in parts)


#: Keras opens the scope of a layer twice, so that TensorFlow numbers it: `wo` is `wo_1`. A scope
#: without a number is not a layer's.
_NUMBERED = re.compile(r"(.+)_[0-9]+", re.DOTALL)


def _in_keras(scopes: list[str]) -> list[Layer] | None:
    """Return the layers of Keras in a name by tf2onnx, without the network itself.

    An example: ``net_1/block_1/norm_1/moments/mean``.
    """
    found: list[Layer] = []
    for scope in scopes:
        if (numbered := _NUMBERED.fullmatch(scope)) is None:
            break
        found.append((numbered[1], None))
    return _paths(found[1:]) if found else None


#: The names of parameters that follow the path of their layer, in PyTorch and MindSpore:
#: `blocks.0.wo.weight`.
_PARAMETERS = ("weight", "bias", "gamma", "beta")


def _owners(graph: Graph) -> Mapping[tuple[int, ...], str]:
    """Return the layer whose weights only one node takes, by the node's results."""
    origin: dict[int, int] = {}  # the initializer of each value, before casts and transpositions
    takers: dict[int, set[tuple[int, ...]]] = {}
    for number, value in enumerate(graph.values):
        path, _, parameter = value.name.rpartition(".")
        if (
            value.maker is None
            and value.numbers is not None
            and parameter in _PARAMETERS
            and path
            and "/" not in path
        ):
            origin[number] = number
    for node in graph.nodes:
        if is_cast(node) or (
            node.kind in ("Identity", "Transpose") and node.inputs and node.outputs
        ):
            if node.inputs[0] in origin:
                origin[node.outputs[0]] = origin[node.inputs[0]]
            continue
        for number in node.inputs:
            if number in origin:
                takers.setdefault(origin[number], set()).add(node.outputs)
    found: dict[tuple[int, ...], set[str]] = {}
    for first, nodes in takers.items():
        if len(nodes) == 1:
            found.setdefault(nodes.pop(), set()).add(graph.values[first].name.rpartition(".")[0])
    return {outputs: paths.pop() for outputs, paths in found.items() if len(paths) == 1}


def _paths(found: Iterable[Layer]) -> list[Layer]:
    """Return nested layers with their paths instead of their own names."""
    path, paths = "", []
    for name, classes in found:
        path = f"{path}.{name}" if path else name
        paths.append((path, classes))
    return paths


def _matching(precision: Precision, layer: Layer) -> Iterator[tuple[LayerRule, bool]]:
    """Yield the rules that may be for a layer, the last first, and whether each surely is."""
    name, classes = layer
    for rule in reversed(list(precision.layers)):
        if matches_names(rule.pattern, name, classes):
            yield rule, classes is not None or ":" not in rule.pattern


def _policy(rule: LayerRule, around: Policy) -> Policy:
    return rule.policy if isinstance(rule.policy, Policy) else _float32(around.dtype)


@cache
def _float32(dtype: DtypeName) -> Policy:
    """Return the policy of a rule ``"float32"`` inside a policy with the dtype."""
    return Policy(dtype=dtype, deny=EVERYTHING)
