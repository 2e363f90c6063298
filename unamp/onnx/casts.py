"""Casts in a graph that change no result, and weights that are stored in too wide a dtype."""

from __future__ import annotations

from typing import NamedTuple

from unamp.dtypes import LOW_DTYPES, PRECISIONS
from unamp.onnx.operators import STANDARD
from unamp.onnx.reading import Graph, Node


class IdleCast(NamedTuple):
    """A cast that can be removed.

    Attributes:
        name: the name of the node.
        why: the reason why it can be removed.
    """

    name: str
    why: str


class WideWeight(NamedTuple):
    """An initializer, or a constant of several numbers, that is only ever cast to one low dtype.

    Attributes:
        name: the name of the value.
        stored: the dtype that it is stored in.
        used: the dtype that it is cast to.
        saved: the bytes that the file would lose.
    """

    name: str
    stored: str
    used: str
    saved: int


def is_cast(node: Node) -> bool:
    """Return whether a node is a cast."""
    return (
        node.kind in ("Cast", "CastLike")
        and node.domain in STANDARD
        and len(node.inputs) > 0
        and len(node.outputs) == 1
    )


def idle_casts(graph: Graph) -> list[IdleCast]:
    """Return the casts that can be removed, in the order of the graph."""
    consumers = graph.consumers()
    before: dict[tuple[int, int, str], str] = {}
    found = []
    for node in filter(is_cast, graph.nodes):
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if source.dtype is None or result.dtype is None:
            continue
        twin = before.setdefault((node.graph, node.inputs[0], result.dtype), node.name)
        if not consumers[node.outputs[0]] and node.outputs[0] not in graph.results:
            found.append(IdleCast(node.name, "nothing takes its result"))
        elif source.dtype == result.dtype:
            found.append(IdleCast(node.name, f"its input is {source.dtype} already"))
        elif twin != node.name:
            found.append(IdleCast(node.name, f"{twin} casts the same to {result.dtype}"))
        elif said := _undone(graph, node):
            found.append(IdleCast(node.name, said))
    return found


def _undone(graph: Graph, node: Node) -> str:
    """Return a reason if a cast only undoes a lossless cast before it; empty where it does not."""
    source, first = graph.values[node.inputs[0]], graph.maker(node.inputs[0])
    if first is None or not is_cast(first):
        return ""
    begun = graph.values[first.inputs[0]].dtype
    if begun != graph.values[node.outputs[0]].dtype or not _lossless(begun, source.dtype):
        return ""
    return f"it undoes {first.name}, which casts {begun} to {source.dtype}"


def _lossless(narrow: str | None, wide: str | None) -> bool:
    """Return whether every number of the dtype `narrow` is also one of the dtype `wide`."""
    if narrow not in PRECISIONS or wide not in PRECISIONS:
        return False
    a, b = PRECISIONS[narrow], PRECISIONS[wide]
    return (
        a.digits <= b.digits
        and a.smallest_subnormal >= b.smallest_subnormal
        and a.largest <= b.largest
    )


def wide_weights(graph: Graph) -> list[WideWeight]:
    """Return the initializers and constants only ever cast to one low dtype, the largest first."""
    consumers = graph.consumers()
    found = []
    for number, value in enumerate(graph.values):
        # an exporter writes such a number beside the node that takes it
        one = value.numbers == 1 and value.maker is not None
        if value.numbers is None or one or value.dtype not in PRECISIONS or number in graph.results:
            continue
        used = {_cast_to(graph, graph.nodes[node], number) for node in consumers[number]}
        low = used.pop() if len(used) == 1 else None
        if low in LOW_DTYPES and PRECISIONS[low].size < PRECISIONS[value.dtype].size:
            saved = value.numbers * (PRECISIONS[value.dtype].size - PRECISIONS[low].size)
            found.append(WideWeight(value.name, value.dtype, low, saved))
    return sorted(found, key=lambda weight: -weight.saved)


def _cast_to(graph: Graph, node: Node, number: int) -> str | None:
    """Return the dtype that a node casts a value to; None where it does anything else with it."""
    return (
        graph.values[node.outputs[0]].dtype if is_cast(node) and node.inputs[0] == number else None
    )
