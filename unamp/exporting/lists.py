"""The tools for which there are lists, and `export_lists`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from unamp.errors import unknown
from unamp.exporting.onnx_lists import modelopt, onnxconverter_common, openvino
from unamp.exporting.policies import ExportLists
from unamp.exporting.torch_lists import coremltools, torch_tensorrt
from unamp.precision import Precision

#: Tools that read an ONNX file, whose nodes have names.
_OF_FILES: Mapping[str, Callable[[Precision, Path | None], ExportLists]] = {
    "modelopt": modelopt,
    "onnxconverter-common": onnxconverter_common,
    "openvino": openvino,
}

#: Tools that read the program of a framework.
_OF_PROGRAMS: Mapping[str, Callable[[Precision], ExportLists]] = {
    "coremltools": coremltools,
    "torch-tensorrt": torch_tensorrt,
}

TOOLS = tuple(sorted((*_OF_FILES, *_OF_PROGRAMS)))


def export_lists(precision: Precision, tool: str, model: Path | None = None) -> ExportLists:
    """Return the arguments of a tool for a policy and its rules for layers.

    Args:
        precision: the policy and the rules.
        tool: one of `TOOLS`.
        model: the float32 ONNX file that the tool is to convert, for the names of its nodes.

    Raises:
        ValueError: for another tool, for a low dtype that it does not have, and for a model that it
            does not read; `unamp.onnx.BadModel` for a file that is no sound ONNX file.
        ModuleNotFoundError: where the package `onnx` is not installed, and there is a model.
        OSError: where the model cannot be read.
    """
    if of_files := _OF_FILES.get(tool):
        return of_files(precision, model)
    if tool not in _OF_PROGRAMS:
        raise ValueError(unknown("tool", tool, TOOLS))
    if model is not None:
        raise ValueError(
            f"{tool} does not read ONNX files: leave --model out; it takes the network's own names"
        )
    return _OF_PROGRAMS[tool](precision)
