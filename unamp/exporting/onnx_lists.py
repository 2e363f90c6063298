"""Arguments of tools that convert ONNX files: operator types and node names to keep in float32."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from pprint import pformat
from typing import NamedTuple

from unamp._grouping import grouped
from unamp.exporting.policies import ExportLists, low_dtype, results_unsaid, sorted_types
from unamp.onnx.operators import operator_types
from unamp.onnx.planning import PlannedGraph, plan
from unamp.onnx.reading import Graph, Node, read_graph
from unamp.precision import Precision


class _Kept(NamedTuple):
    """Types of operators and names of nodes to keep in float32, and remarks for the user."""

    types: list[str]
    names: list[str]
    unsaid: list[str]


def onnxconverter_common(precision: Precision, model: Path | None) -> ExportLists:
    """Return the arguments of `onnxconverter_common.float16.convert_float_to_float16`."""
    tool = "onnxconverter-common"
    low = low_dtype(precision, tool, ("float16",))
    planned = None if model is None else _planned(precision, model, tool)
    refused = {_FIXED} if planned is None else {node.kind for node in planned[1].rest} & {_FIXED}
    kept = _kept(precision, planned, low)
    if refused - {*kept.types}:
        kept.types[:] = sorted([*kept.types, _FIXED])
        kept.unsaid.append(
            f"{tool} makes no valid {_FIXED} in float16; here all of them stay in float32"
        )
    arguments: dict[str, object] = {
        "op_block_list": kept.types,
        "node_block_list": kept.names,
        # the range of float16, and not the function's defaults 1e-7 and 1e4
        "min_positive_val": 2.0**-24,
        "max_finite_val": 65504.0,
        "keep_io_types": True,
    }
    shared = [] if planned is None else _shared(*planned)
    copies = _COPIES.format(shared=_listed(shared, 0)) if shared else ""
    code = _ONNXCONVERTER_COMMON.format(
        model=_path(model), arguments=_written(arguments), copies=copies
    )
    return ExportLists(tool, arguments, code, kept.unsaid)


#: The one type with an input that ONNX wants in float32 always, and that this tool casts.
_FIXED = "Resize"

_ONNXCONVERTER_COMMON = """\
import onnx
from onnxconverter_common.float16 import convert_float_to_float16

model = onnx.load({model})
arguments = dict(
{arguments})
stored = {{each.name: each for each in model.graph.initializer}}
for each in list(model.graph.value_info):
    if each.name in stored:  # or weights are rounded to float16 in front of nodes in float32
        model.graph.value_info.remove(each)
{copies}model = convert_float_to_float16(model, **arguments)
"""

#: The tool stores a weight in one dtype, so a weight that nodes of both dtypes take needs a copy.
_COPIES = """\
for name in {shared}:  # nodes of both dtypes take these weights
    copy = model.graph.initializer.add()
    copy.CopyFrom(stored[name])
    copy.name = f"{{name}} in float32"
    for node in model.graph.node:
        if node.op_type in arguments["op_block_list"] or node.name in arguments["node_block_list"]:
            node.input[:] = [copy.name if each == name else each for each in node.input]
"""


def modelopt(precision: Precision, model: Path | None) -> ExportLists:
    """Return the arguments of `modelopt.onnx.autocast.convert_to_mixed_precision`."""
    low = low_dtype(precision, "modelopt", ("bfloat16", "float16"))
    kept = _kept(precision, None if model is None else _planned(precision, model, "modelopt"), low)
    arguments: dict[str, object] = {
        "low_precision_type": {"float16": "fp16", "bfloat16": "bf16"}[low],
        "nodes_to_exclude": [f"{re.escape(name)}$" for name in kept.names],
        "op_types_to_exclude": kept.types,
        "data_max": None,  # a policy does not depend on the numbers of an example
        "init_max": None,
        "keep_io_types": True,
    }
    head = "from modelopt.onnx.autocast import convert_to_mixed_precision\n"
    call = f"model = convert_to_mixed_precision(\n    {_path(model)},\n{_written(arguments)})\n"
    return ExportLists("modelopt", arguments, f"{head}\n{call}", kept.unsaid)


def openvino(precision: Precision, model: Path | None) -> ExportLists:
    """Return the results of the nodes that OpenVINO is to compute in float32, and their marks."""
    low = low_dtype(precision, "openvino", ("bfloat16", "float16"))
    if model is None:
        raise ValueError(
            "openvino knows operations by the names of their results alone: say --model"
        )
    graph, planned = _planned(precision, model, "openvino")
    results = [
        graph.values[each].name
        for node in planned.float32
        for each in node.outputs
        if graph.values[each].name
    ]
    arguments: dict[str, object] = {
        "float32": results,
        "INFERENCE_PRECISION_HINT": {"float16": "f16", "bfloat16": "bf16"}[low],
    }
    unsaid = [
        *_unclear(planned, precision),
        (
            f"whether the rest runs in {low} and whether the marks of float32 outlive fusion is up "
            "to the device; compiled.get_runtime_model() tells"
        ),
    ]
    code = _OPENVINO.format(
        names=_listed(results, 0), model=_path(model), hint=arguments["INFERENCE_PRECISION_HINT"]
    )
    return ExportLists("openvino", arguments, code, unsaid)


#: The mark is a private one, which OpenVINO reads from a file and not from memory: hence the file.
_OPENVINO = """\
import openvino

FLOAT32 = {names}

model = openvino.convert_model({model})
for operation in model.get_ordered_ops():
    if any(name in FLOAT32 for output in operation.outputs() for name in output.names):
        operation.get_rt_info()["precise_0"] = ""
openvino.save_model(model, "model.xml", compress_to_fp16=False)
compiled = openvino.compile_model("model.xml", "AUTO", {{"INFERENCE_PRECISION_HINT": "{hint}"}})
"""


def _kept(precision: Precision, planned: tuple[Graph, PlannedGraph] | None, low: str) -> _Kept:
    return _kept_of_any(precision, low) if planned is None else _kept_of(planned[1], precision)


def _kept_of_any(precision: Precision, low: str) -> _Kept:
    """Return the types of operators that stay in float32 in any model; names need a model."""
    types = sorted_types(precision.policy, operator_types())
    said = [
        (
            (
                "they run in the dtype of their inputs, which only --model tells; "
                "here they run in {low}"
            ),
            types.following,
        ),
        (
            "the policy says different things for what they may be; here they stay in float32",
            types.mixed,
        ),
        (
            "no operation of the vocabulary is of these types; here they stay in float32",
            types.unnamed,
        ),
        (
            "rules for layers, which only --model finds the nodes of",
            [repr(rule.pattern) for rule in precision.layers],
        ),
    ]
    unsaid = [f"{why.format(low=low)}: {', '.join(which)}" for why, which in said if which]
    return _Kept(sorted([*types.float32, *types.mixed, *types.unnamed]), [], unsaid)


def _planned(precision: Precision, model: Path, tool: str) -> tuple[Graph, PlannedGraph]:
    graph = read_graph(model)
    if any(node.graph for node in graph.nodes):
        raise ValueError(
            f"{model} has graphs inside control flow, whose nodes lists for {tool} cannot name"
        )
    return graph, plan(graph, precision)


def _kept_of(planned: PlannedGraph, precision: Precision) -> _Kept:
    """Return the operator types to keep in float32, and the names of other nodes to keep there.

    A type is kept where all its nodes in the model stay in float32.
    """
    low_names = {node.name for node in planned.rest}
    types = {node.kind for node in planned.float32} - {node.kind for node in planned.rest}
    single = [node for node in planned.float32 if node.kind not in types]
    unsaid = _unclear(planned, precision)
    if nameless := [node for node in single if not node.named]:
        unsaid.append(
            f"nodes without a name cannot be on a list; here they run low: {_kinds(nameless)}"
        )
    if twice := sorted({node.name for node in single if node.named} & low_names):
        unsaid.append(
            "nodes that are to run low have these names, too, "
            f"and stay in float32: {', '.join(twice)}"
        )
    names = dict.fromkeys(node.name for node in single if node.named)
    return _Kept(sorted(types), list(names), unsaid)


def _unclear(planned: PlannedGraph, precision: Precision) -> list[str]:
    found = grouped(planned.unclear, lambda node_and_why: node_and_why[1])
    said = [
        f"{why}; here they stay in float32: {_kinds([node for node, _ in those])}"
        for why, those in found.items()
    ]
    said += [
        f"the rule for layers {pattern!r} matches no layer of the model"
        for pattern in planned.unmatched
    ]
    return said + results_unsaid(precision)


def _shared(graph: Graph, planned: PlannedGraph) -> list[str]:
    """Return the weights that nodes of both dtypes take."""
    low, wide = _weights(graph, planned.rest), _weights(graph, planned.float32)
    return [name for name in low if name in wide]


def _weights(graph: Graph, nodes: Iterable[Node]) -> dict[str, None]:
    values = (graph.values[each] for node in nodes for each in node.inputs)
    stored = (value for value in values if value.maker is None and value.numbers is not None)
    return {value.name: None for value in stored if value.dtype == "float32"}


def _kinds(nodes: Sequence[Node]) -> str:
    counted = Counter(node.kind for node in nodes)
    return ", ".join(f"{times} {kind}" for kind, times in sorted(counted.items()))


def _path(model: Path | None) -> str:
    return repr("model.onnx" if model is None else str(model))


def _written(arguments: dict[str, object]) -> str:
    return "".join(f"    {name}={_listed(value, 4)},\n" for name, value in arguments.items())


def _listed(value: object, indent: int) -> str:
    return pformat(value, width=110, compact=True).replace("\n", "\n" + " " * (indent + 4))
