"""The dtype under a policy of each node of a float32 graph, before it is converted."""

from __future__ import annotations

from typing import NamedTuple

from unamp.dtypes import ELIGIBLE, FLOAT32
from unamp.onnx.casts import is_cast
from unamp.onnx.judging import agreed
from unamp.onnx.naming import Layers, operations
from unamp.onnx.reading import Graph, Node
from unamp.policy import Policy, Rule
from unamp.precision import Precision
from unamp.vocabulary import vocabulary


class PlannedGraph(NamedTuple):
    """A graph whose nodes are divided by their dtype.

    Attributes:
        float32: the nodes to keep in float32.
        rest: all other nodes.
        unclear: the nodes of which the file says too little, with reasons; they stay in float32.
        unmatched: the patterns of layer rules that match no layer of the graph.
    """

    float32: list[Node]
    rest: list[Node]
    unclear: list[tuple[Node, str]]
    unmatched: list[str]


def plan(graph: Graph, precision: Precision) -> PlannedGraph:
    """Return the dtype of each node under a policy, for float32 inputs of the graph."""
    planner = _Planner(graph, precision)
    for number, node in enumerate(graph.nodes):
        planner.take(number, node)
    planner.settle_stored()
    return PlannedGraph(
        [node for number, node in enumerate(graph.nodes) if number in planner.wide],
        [node for number, node in enumerate(graph.nodes) if number not in planner.wide],
        planner.unclear,
        planner.layers.unmatched,
    )


class _Planner:
    """One pass through a graph.

    Attributes:
        wide: the numbers of the nodes that stay in float32.
        unclear: the nodes of which the file says too little.
        layers: the layers that the nodes are in.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self._graph = graph
        self.layers = Layers(graph, precision)
        self._labelled = any(node.scopes for node in graph.nodes)
        # None: the value takes the dtype of the values that it meets, as some constants do.
        self._dtypes = [
            None if self._yields(number) else value.dtype
            for number, value in enumerate(graph.values)
        ]
        self._stored = {
            number for number, value in enumerate(graph.values) if value.numbers is not None
        }
        self._only_stored: list[int] = []
        self.wide: set[int] = set()
        self.unclear: list[tuple[Node, str]] = []

    def take(self, number: int, node: Node) -> None:
        """Decide the dtype of a node, after the nodes that make its inputs."""
        around = self.layers.around(node)
        ours = [each for each in node.outputs if self._graph.values[each].dtype == FLOAT32]
        floating = [each for each in node.inputs if self._graph.values[each].dtype in ELIGIBLE]
        if floating and not is_cast(node):
            expected = self._expected(node, self.layers.policies(around))
        else:  # nothing that a policy casts, or a cast, which has a dtype of its own
            expected = {FLOAT32} if ours else {None}
        if len(expected) > 1:
            self.unclear.append((node, _said(node, expected)))
            expected = {FLOAT32}
        dtype = expected.pop()
        if all(each in self._stored for each in node.inputs) and node.kind != "Cast":
            self._stored.update(node.outputs)
            self._only_stored.append(number)
            if node.kind == "Constant":
                dtype = None
        elif dtype == FLOAT32 and (ours or (floating and not _tells_a_shape(node))):
            self.wide.add(number)
        for each in ours:
            self._dtypes[each] = dtype

    def settle_stored(self) -> None:
        """Keep nodes that use only constants in float32 where their results go to float32 nodes."""
        consumers = self._graph.consumers()
        for number in reversed(self._only_stored):
            outputs = [
                each
                for each in self._graph.nodes[number].outputs
                if self._graph.values[each].dtype == FLOAT32
            ]
            if any(not self.wide.isdisjoint(consumers[each]) for each in outputs):
                self.wide.add(number)

    def _yields(self, number: int) -> bool:
        """Return whether a stored value takes the dtype of the values that it meets.

        A single number does. Where the exporter names no layers, any stored value does.
        """
        numbers = self._graph.values[number].numbers
        return numbers is not None and (numbers == 1 or not self._labelled)

    def _expected(self, node: Node, possible: list[Policy]) -> set[str | None]:
        """Return a node's dtypes, under all policies and for all operations that are possible."""
        sources = {dtype for each in node.inputs if (dtype := self._dtypes[each]) in ELIGIBLE}
        found = {
            _dtype(policy, op, {*map(str, sources)})
            for op in operations(node)
            for policy in possible
        }
        return found or {FLOAT32, None}


def _dtype(policy: Policy, op: str, sources: set[str]) -> str | None:
    rule = policy.decide(op)
    if rule is Rule.LOW:
        return policy.dtype
    if rule in (Rule.FP32, Rule.BANNED):
        return FLOAT32
    return agreed(Rule.NARROWEST if rule is Rule.NARROWEST else Rule.WIDEST, sources)


def _tells_a_shape(node: Node) -> bool:
    return any(vocabulary()[op].keeps_its_meaning for op in operations(node))


def _said(node: Node, expected: set[str | None]) -> str:
    ops = operations(node)
    if not ops:
        return f"no operation of the vocabulary is a {node.kind}"
    told = "its operation or its layer" if len(ops) > 1 else "its layer"
    said = " or ".join(sorted(each or "any dtype" for each in expected))
    return f"the file does not say {told}, and the policy says {said}"
