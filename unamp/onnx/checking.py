"""Check an ONNX file against a policy and its rules for layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from unamp.onnx.casts import IdleCast, WideWeight, idle_casts, wide_weights
from unamp.onnx.judging import DIFFERS, INVALID, CheckedNode, Judge
from unamp.onnx.reading import read_graph
from unamp.policy import Policy
from unamp.precision import Precision


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
    judge = Judge(graph, precision)
    nodes = [judged for node in graph.nodes if (judged := judge.judged(node)) is not None]
    return CheckedModel(nodes, idle_casts(graph), wide_weights(graph), judge.layers.unmatched)
