"""ONNX files held against a policy: what each node computes in, casts that can go, weights that are stored wide.

What is read with the package `onnx` comes with the extra ``onnx``.
"""

from unamp.onnx.casts import IdleCast, WideWeight
from unamp.onnx.checking import Checked, check
from unamp.onnx.judging import CheckedNode
from unamp.onnx.reading import BadModel

__all__ = ["BadModel", "Checked", "CheckedNode", "IdleCast", "WideWeight", "check"]
