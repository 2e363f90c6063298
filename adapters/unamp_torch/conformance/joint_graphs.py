"""The graphs that AOTAutograd traces of a function and its gradients on an absent device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from functorch.compile import aot_function, nop
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.traceback import preserve_node_meta

from unamp.adapter.replacing import AttributePatch
from unamp_torch.conformance.fake_gradients import Places, gradients


class _Traced(Exception):
    """Raised once the graph is traced, so that nothing is compiled."""


def joint_graph(
    function: Callable[..., Tensor], inputs: Sequence[Sequence[Tensor]], places: Places
) -> GraphModule:
    """Return the joint graph of a function, in which each node is annotated with its place.

    Args:
        function: returns a scalar.
        inputs: fake tensors, of which some require gradients.
        places: the places in which the function calls operations.
    """
    found: list[GraphModule] = []

    def keep(joint: GraphModule, *_: Any, **__: Any) -> Any:
        found.append(joint)
        raise _Traced

    # Tracing calls the engine, which asks for the device itself.
    engine = AttributePatch(torch.autograd, "grad", lambda _: partial(gradients, places=places))
    engine.apply()
    places.annotated = True
    try:
        with preserve_node_meta():
            aot_function(function, nop, partition_fn=keep)(*inputs)
    except _Traced:
        pass
    finally:
        engine.undo()
        places.annotated = False
    return found[0]


def run(graph: GraphModule, places: Places) -> None:
    """Run a joint graph on its own fake inputs, each node in its place."""
    _InPlaces(graph, places).run(
        *(node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder")
    )


class _InPlaces(Interpreter):
    """Runs each node of a graph in the place that it is annotated with."""

    def __init__(self, graph: GraphModule, places: Places) -> None:
        super().__init__(graph)
        self._places = places

    def run_node(self, n: Node) -> Any:
        place = n.meta.get("custom", {}).get("place", "")
        backward = n.meta.get("partitioner_tag") == "is_backward"
        with self._places.named(place, backward=backward):
            return super().run_node(n)
