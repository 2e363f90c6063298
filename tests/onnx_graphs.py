"""Small ONNX graphs, written node by node, for the tests of all code that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["F16", "F32", "cast", "graph", "model", "node", "saved", "weight"]

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


def node(
    kind: str,
    inputs: str,
    outputs: str,
    layers: Sequence[tuple[str, str]] | None = None,
    **more: Any,
) -> NodeProto:
    """Return a node, named after its first output.

    `layers` are written to it as PyTorch's exporter does.
    """
    made = helper.make_node(
        kind,
        inputs.split(),
        outputs.split(),
        name=more.pop("name", f"{outputs.split()[0]}_node"),
        **more,
    )
    if layers is not None:
        names, classes = (list(each) for each in zip(("", "Net"), *layers, strict=True))
        for key, value in ((SCOPES, names), (CLASSES, classes)):
            made.metadata_props.add(key=key, value=str(value))
    return made


def cast(
    source: str, result: str, dtype: int, layers: Sequence[tuple[str, str]] | None = None
) -> NodeProto:
    return node("Cast", source, result, layers, to=dtype)


def weight(name: str, dtype: type = np.float32, shape: tuple[int, ...] = (4, 4)) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def graph(
    nodes: Sequence[NodeProto], result: str, weights: Sequence[TensorProto] = (), given: int = F32
) -> GraphProto:
    x, y = (
        helper.make_tensor_value_info("x", given, [4, 4]),
        helper.make_tensor_value_info(result, F32, None),
    )
    return helper.make_graph(nodes, "graph", [x], [y], weights)


def model(
    nodes: Sequence[NodeProto], result: str, weights: Sequence[TensorProto] = (), given: int = F32
) -> ModelProto:
    return helper.make_model(
        graph(nodes, result, weights, given), opset_imports=[helper.make_opsetid("", 20)]
    )


def saved(made: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path
