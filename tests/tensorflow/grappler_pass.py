"""grappler's own pass, run on the graphs of its tests, and its recorded answers.

On a CPU without AVX-512 the pass leaves graphs as they are. So ``grappler.json`` keeps the answers,
with TensorFlow's version. ``python -m tests.tensorflow.grappler_pass`` writes the file anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer

from tests.tensorflow.grappler_graphs import CASES, LOOPS, LOW, Case, Place

__all__ = ["ANSWERS", "rewritten", "runs_here"]

_PASS = "auto_mixed_precision_onednn_bfloat16"
_FILE = Path(__file__).with_name("grappler.json")

#: The dtypes of the nodes in the graph that grappler made of each case, by the case's name.
ANSWERS: dict[str, dict[str, str]] = (
    json.loads(_FILE.read_text("utf-8"))["answers"] if _FILE.exists() else {}
)


def runs_here() -> bool:
    """Return whether the pass rewrites graphs on this processor.

    The simplest graph that it can rewrite answers this.
    """
    return rewritten("BatchMatMul") == {"allow1": LOW}


def rewritten(name: str) -> dict[str, str]:
    """Return the dtypes of the nodes in the graph that grappler makes of a case.

    The pass rewrites for bfloat16 on a CPU.
    """
    place, given, asked = _graph(CASES[name], loops=name in LOOPS or name == "recurrent_lstm")
    meta = tf.compat.v1.train.export_meta_graph(graph_def=given, graph=tf.Graph())
    meta.collection_def["train_op"].node_list.value.extend(asked)
    config = config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.min_graph_nodes = -1  # a graph of any size
    rewriting.optimizers.append(_PASS)
    nodes_after = {node.name: node for node in tf_optimizer.OptimizeGraph(config, meta).node}
    found = {
        called: _dtype(nodes_after[tensor.op.name], tensor)
        for called, tensor in place.tensors.items()
    }
    return {called: LOW if dtype == "bfloat16" else dtype for called, dtype in found.items()}


def _graph(case: Case, *, loops: bool) -> tuple[Place, Any, list[str]]:
    """Return a case's nodes, its graph, and the names of the nodes to fetch.

    Args:
        case: the case.
        loops: whether the case has loops, which grappler rewrites as nodes
            only, not as functions.
    """
    (tf.compat.v1.disable_control_flow_v2 if loops else tf.compat.v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            place = Place("bfloat16")
            case.build(place)
            if case.trained:
                nodes = list(place.tensors.values())
                tf.compat.v1.gradients(nodes[-1], nodes[0].op.inputs[1])
            ends = [
                n.outputs[0]
                for n in graph.get_operations()
                if n.outputs and not any(o.consumers() for o in n.outputs)
            ]
            asked = [
                tf.identity(end).op.name
                for end in ends
                if end.dtype not in (tf.resource, tf.variant)
            ]
            given = graph.as_graph_def()
    finally:
        tf.compat.v1.enable_control_flow_v2()
    asked += [place.tensors[name].op.name for name in case.fetched.split()]
    return place, given, asked


def _dtype(node: Any, tensor: Any) -> str:
    """Return the dtype of a node's first output, from the type attributes that grappler set."""
    definition = tensor.op.op_def.output_arg[
        tensor.value_index if len(tensor.op.op_def.output_arg) > 1 else 0
    ]
    if definition.type_attr:
        return str(tf.as_dtype(node.attr[definition.type_attr].type).name)
    return str(tf.as_dtype(node.attr[definition.type_list_attr].list.type[0]).name)


def main() -> int:
    """Write grappler's answer for every case to the file; fail where the pass does not run."""
    if not runs_here():
        print(
            f"{_PASS} leaves graphs as they are on this processor: "
            f"{_FILE.name} is written where there is AVX-512"
        )
        return 1
    answers = {name: rewritten(name) for name in CASES}
    _FILE.write_text(
        json.dumps({"tensorflow": tf.__version__, "pass": _PASS, "answers": answers}, indent=1)
        + "\n",
        "utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
