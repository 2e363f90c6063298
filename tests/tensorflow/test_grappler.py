"""The preset with grappler's lists decides as grappler does on grappler's own graphs, but where that looks further.

grappler's tests are for float16 on a GPU. What they expect is held against both: the preset, and grappler as it rewrites
the same graphs here, for bfloat16 on a CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer

import unamp
from tests.tensorflow.grappler_graphs import CASES, LOOPS, LOW, Case, Place

DTYPES = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in LOOPS])
def test_a_graph_of_grapplers(name: str, graph: bool, dtype: str) -> None:
    check(name, dtype, graph=graph)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_grapplers(name: str, dtype: str) -> None:
    check(name, dtype, graph=True)


def check(name: str, dtype: str, *, graph: bool) -> None:
    case, place = CASES[name], Place(dtype)
    with unamp.autocast(level="O1", dtype=dtype, preset="tensorflow"):
        (tf.function(case.build) if graph else case.build)(place)
    assert {node: found for node, found in place.dtypes.items() if node in case.expected} == case.but(case.later)


@pytest.mark.parametrize("name", CASES)
def test_grappler_itself(name: str) -> None:
    case = CASES[name]
    found = rewritten(case, loops=name in LOOPS or name == "recurrent_lstm")
    assert {node: dtype for node, dtype in found.items() if node in case.expected} == case.but(case.on_cpu)


def rewritten(case: Case, *, loops: bool) -> dict[str, str]:
    """Return the dtypes of the nodes in the graph that grappler makes of a case, for bfloat16 on a CPU.

    Args:
        case: the case.
        loops: whether it has loops, which grappler rewrites where they are nodes, and not functions.
    """
    (tf.compat.v1.disable_control_flow_v2 if loops else tf.compat.v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            place = Place("bfloat16")
            case.build(place)
            if case.trained:
                nodes = list(place.tensors.values())
                tf.compat.v1.gradients(nodes[-1], nodes[0].op.inputs[1])
            ends = [n.outputs[0] for n in graph.get_operations() if n.outputs and not any(o.consumers() for o in n.outputs)]
            asked = [tf.identity(end).op.name for end in ends if end.dtype not in (tf.resource, tf.variant)]
            given = graph.as_graph_def()
    finally:
        tf.compat.v1.enable_control_flow_v2()
    asked += [place.tensors[name].op.name for name in case.fetched.split()]
    meta = tf.compat.v1.train.export_meta_graph(graph_def=given, graph=tf.Graph())
    meta.collection_def["train_op"].node_list.value.extend(asked)
    config = config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.min_graph_nodes = -1  # however small it is
    rewriting.optimizers.append("auto_mixed_precision_onednn_bfloat16")
    nodes_after = {node.name: node for node in tf_optimizer.OptimizeGraph(config, meta).node}
    found = {name: _dtype(nodes_after[tensor.op.name], tensor) for name, tensor in place.tensors.items()}
    return {name: LOW if dtype == "bfloat16" else dtype for name, dtype in found.items()}


def _dtype(node: Any, tensor: Any) -> str:
    """Return the dtype of the first output of a node, whose type attributes grappler has changed."""
    definition = tensor.op.op_def.output_arg[tensor.value_index if len(tensor.op.op_def.output_arg) > 1 else 0]
    if definition.type_attr:
        return str(tf.as_dtype(node.attr[definition.type_attr].type).name)
    return str(tf.as_dtype(node.attr[definition.type_list_attr].list.type[0]).name)
