"""Check an ONNX file against a policy: a verdict on each node of its graph."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unamp.dtypes import ELIGIBLE, FLOAT32, LOW_DTYPES, PRECISIONS
from unamp.onnx.casts import IdleCast, WideWeight, idle_casts, is_cast, wide_weights
from unamp.onnx.naming import Layers, operations
from unamp.onnx.reading import Graph, Node, read_graph
from unamp.policy import Policy, Rule
from unamp.precision import Precision
from unamp.vocabulary import vocabulary

FOLLOWS, DIFFERS, INVALID = "follows", "differs", "invalid"
WIDER_INSIDE, UNCLEAR = "wider inside", "unclear"

_ANY = "any"  # the expectation of a rule that leaves a node as it is
_UNKNOWN = "unknown"

#: Groups of operations that may be parts of another: an exporter writes `rms_norm` as a power, a
#: mean and a product.
_PARTS = {"elementwise", "reduction"}


class CheckedNode(NamedTuple):
    """A node that computes with floating numbers, and the verdict on it.

    Attributes:
        name: the node's name in the file.
        type: the type of its operator, with the domain in front unless that is ONNX's own.
        operations: the vocabulary's operations that it may be part of; one if the file says enough.
        layer: the innermost layer that it is in; None where the file does not say.
        dtype: the dtype that it computes in; all of them where its inputs differ.
        expected: the dtype under the policy; several where the file does not say enough; ``any``
            for a node that the policy leaves as it is.
        verdict: ``follows``; ``differs``; ``invalid`` where ONNX does not allow its dtypes; ``wider
            inside`` for a float32 part of an operation that takes the right dtype; ``unclear``
            where the file does not say enough.
        why: the reason, where the other fields do not show it.
    """

    name: str
    type: str
    operations: tuple[str, ...]
    layer: str | None
    dtype: str
    expected: str
    verdict: str
    why: str = ""


class CheckedModel(NamedTuple):
    """The result of `check`.

    Attributes:
        nodes: the nodes that compute with floating numbers, in the order of the graph.
        casts: the casts that can be removed without changing a result.
        weights: the initializers that are stored wide and only ever cast to one low dtype.
        unmatched: the patterns of layer rules that match no layer of the graph.
    """

    nodes: list[CheckedNode]
    casts: list[IdleCast]
    weights: list[WideWeight]
    unmatched: list[str]

    @property
    def follows(self) -> bool:
        """Return whether no node differs or is invalid, and each layer rule matches a layer."""
        return not self.unmatched and all(
            node.verdict not in (DIFFERS, INVALID) for node in self.nodes
        )

    def to_data(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            "follows": self.follows,
            "nodes": [node._asdict() for node in self.nodes],
            "casts": [cast._asdict() for cast in self.casts],
            "weights": [weight._asdict() for weight in self.weights],
            "unmatched": self.unmatched,
        }


def check(path: str | os.PathLike[str], precision: Precision | Policy) -> CheckedModel:
    """Return the verdict on every node of an ONNX file, by a policy.

    Nothing is computed, and no other file is opened.

    Args:
        path: the file.
        precision: a policy, or one with rules for layers.

    Raises:
        unamp.onnx.BadModel: where the file is no valid ONNX model; a `ValueError` in one line.
        ValueError: for a policy whose lists depend on the device (preset ``native``).
        ModuleNotFoundError: where the package `onnx` is not installed.
        OSError: where the file cannot be read.
    """
    if isinstance(precision, Policy):
        precision = Precision(precision)
    for policy in (precision.policy, *(rule.policy for rule in precision.layers)):
        if isinstance(policy, Policy):
            _ = policy.rules  # refuses a policy without lists of its own, before the file is read
    graph = read_graph(Path(path))
    judge = _Judge(graph, precision)
    nodes = [judged for node in graph.nodes if (judged := judge.judged(node)) is not None]
    return CheckedModel(nodes, idle_casts(graph), wide_weights(graph), judge.layers.unmatched)


class _Judge:
    """Compares a graph's nodes with a policy and its rules for layers.

    Attributes:
        layers: the layers that the nodes are in.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self._graph = graph
        self.layers = Layers(graph, precision)
        self._labelled = any(node.scopes for node in graph.nodes)
        self._entering = _entering(graph)
        #: The dtype under the policy, for each result of a node that differs.
        self._meant: dict[int, str] = {}

    def judged(self, node: Node) -> CheckedNode | None:
        """Return the verdict on a node; None for a cast or a node without floating numbers."""
        around = self.layers.around(node)
        dtypes = self._dtypes(node)
        if not dtypes or is_cast(node) or not self._gives_numbers(node):
            return None
        ops, possible = operations(node), self.layers.policies(around)
        expected = {self._expected(node, op, policy) for op in ops for policy in possible}
        verdict, why = self._verdict(
            node, dtypes, expected, "layer" if len(possible) > 1 else "operation"
        )
        if verdict == DIFFERS and len(expected) == 1:
            self._meant.update(dict.fromkeys(node.outputs, *expected))
        return CheckedNode(
            name=node.name,
            type=f"{node.domain}.{node.kind}" if node.domain else node.kind,
            operations=ops,
            layer=None if around is None else next((name for name, _ in around), ""),
            dtype=" and ".join(sorted(dtypes)),
            expected=" or ".join(sorted(expected)) or _UNKNOWN,
            verdict=verdict,
            why=why,
        )

    def _verdict(
        self, node: Node, dtypes: set[str], expected: set[str], unknown: str
    ) -> tuple[str, str]:
        if node.refusal:
            return INVALID, node.refusal
        dtype = next(iter(dtypes))
        if expected == {_ANY}:
            return FOLLOWS, ""
        if not expected:
            return UNCLEAR, "no operation of the vocabulary is of its type"
        if dtype == _UNKNOWN:
            return UNCLEAR, "the file does not say which dtype it takes"
        if dtype not in ELIGIBLE and Rule.BANNED.value not in expected:
            return FOLLOWS, f"no policy casts {dtype}"
        right = expected & {_ANY, dtype}
        if right == expected:
            return FOLLOWS, ""
        if right:
            return UNCLEAR, f"the file does not say which {unknown} it is part of"
        if dtype == FLOAT32 and node.scopes and len(expected) == 1:
            return self._wider(node, *expected)
        return DIFFERS, self._rounded_before(node, expected) if dtype == FLOAT32 else ""

    def _wider(self, node: Node, low: str) -> tuple[str, str]:
        """Return the verdict on a labelled float32 node that should be low."""
        if self._entering[node.graph, node.scopes] == {low}:
            return (
                WIDER_INSIDE,
                "the exporter made the operation of several nodes, with casts among them",
            )
        casts = self._casts_before(node)
        if casts and all(
            cast and cast.scopes and self._graph.values[cast.inputs[0]].dtype == low
            for cast in casts
        ):
            return WIDER_INSIDE, f"its inputs are rounded to {low} first"
        parts = {vocabulary()[op].group for op in operations(node)} <= _PARTS
        if parts and all(cast is None or cast.scopes for cast in casts):
            return (
                UNCLEAR,
                "it may be a part of an operation that stays in float32: the exporter does not say",
            )
        return DIFFERS, ""

    def _rounded_before(self, node: Node, expected: set[str]) -> str:
        """Return a reason where low casts stand before a float32 node, and no node has labels."""
        casts = self._casts_before(node)
        low = {None if cast is None else self._graph.values[cast.inputs[0]].dtype for cast in casts}
        if self._labelled or len(expected) > 1 or low != expected:
            return ""
        return (
            f"its inputs are rounded to {low.pop()} first: "
            "the device of the export may have no such kernel"
        )

    def _casts_before(self, node: Node) -> list[Node | None]:
        """Return the cast that makes each computed input of a node; None for another input."""
        return [
            self._cast_before(number) for number in node.inputs if _computed(self._graph, number)
        ]

    def _cast_before(self, number: int) -> Node | None:
        """Return the cast that makes a value; None where another node makes it."""
        maker = self._graph.maker(number)
        return maker if maker is not None and is_cast(maker) else None

    def _dtypes(self, node: Node) -> set[str]:
        """Return the dtypes that a node computes in.

        These are the dtypes of all inputs that must have the type of the first floating one.
        """
        given = [
            (self._graph.values[number].dtype, kind)
            for number, kind in zip(node.inputs, node.kinds, strict=True)
        ]
        floating = [(dtype, kind) for dtype, kind in given if dtype in PRECISIONS]
        if not floating:
            return {_UNKNOWN} if any(dtype is None for dtype, _ in given) else set()
        first, variable = floating[0]
        return {dtype for dtype, kind in floating if dtype and variable and kind == variable} | {
            str(first)
        }

    def _gives_numbers(self, node: Node) -> bool:
        return any(
            self._graph.values[number].dtype in (None, *PRECISIONS) for number in node.outputs
        )

    def _expected(self, node: Node, op: str, policy: Policy) -> str:
        """Return the dtype of a node under a policy, as part of an operation."""
        rule = policy.decide(op)
        if rule is Rule.LOW:
            return policy.dtype
        if rule in (Rule.WIDEST, Rule.NARROWEST):
            return self._agreed(node, rule)
        return {Rule.FP32: FLOAT32, Rule.BANNED: Rule.BANNED.value}.get(rule, _ANY)

    def _agreed(self, node: Node, rule: Rule) -> str:
        """Return the widest, or narrowest, dtype of a node's inputs.

        Inputs that may have another dtype, such as statistics, do not count.
        """
        values, kinds = self._graph.values, node.kinds
        first = next(
            (
                kind
                for number, kind in zip(node.inputs, kinds, strict=True)
                if values[number].dtype in PRECISIONS
            ),
            "",
        )
        alike = [number for number, kind in zip(node.inputs, kinds, strict=True) if kind == first]
        sources = {str(self._source(number)) for number in alike} & {*ELIGIBLE}
        return agreed(rule, sources) or _ANY

    def _source(self, number: int) -> str | None:
        """Return the dtype of a value before casts that the network did not make itself.

        Where an exporter labels the nodes, a cast without a label was added later. Where no node
        has labels, a cast may be the network's own.
        """
        first = number
        while (
            self._labelled and (cast := self._cast_before(number)) is not None and not cast.scopes
        ):
            number = cast.inputs[0]
        # A tool that changed one node's dtype casts its result back, for nodes that did not change.
        actual = self._graph.values[number].dtype
        return actual if number == first else self._meant.get(number, actual)


def agreed(rule: Rule, sources: set[str]) -> str | None:
    """Return the widest or narrowest of the inputs' dtypes, by the rule; None for any dtype."""
    low = sources & {*LOW_DTYPES}
    if not sources or (rule is Rule.NARROWEST and len(low) > 1):
        return None
    if rule is Rule.NARROWEST:
        return next(iter(low or sources))
    return next(iter(sources)) if len(sources) == 1 else FLOAT32


def _entering(graph: Graph) -> Mapping[tuple[int, tuple[str, ...]], set[str]]:
    """Return, for each operation that an exporter labelled, the floating dtypes of its inputs."""
    found: defaultdict[tuple[int, tuple[str, ...]], set[str]] = defaultdict(set)
    for node in graph.nodes:
        if node.scopes:
            found[node.graph, node.scopes].update(_from_outside(graph, node))
    return found


def _from_outside(graph: Graph, node: Node) -> Iterable[str]:
    for number in filter(partial(_computed, graph), node.inputs):
        maker = graph.maker(number)
        if maker is None or maker.scopes != node.scopes:
            yield str(graph.values[number].dtype)


def _computed(graph: Graph, number: int) -> bool:
    """Return whether a value is floating, and neither stored nor a constant."""
    value, maker = graph.values[number], graph.maker(number)
    return (
        value.dtype in PRECISIONS
        and value.numbers is None
        and (maker is None or maker.kind != "Constant")
    )
