"""Check ONNX files against a policy: the nodes' dtypes, needless casts, and weights stored wide.

The extra ``onnx`` installs the package `onnx`, which reads the files.
"""

from typing import TYPE_CHECKING

from unamp._deprecation import Deprecation, deprecated_names
from unamp.onnx.casts import IdleCast, WideWeight
from unamp.onnx.judging import CheckedModel, CheckedNode, check
from unamp.onnx.reading import BadModel

__all__ = ["BadModel", "CheckedModel", "CheckedNode", "IdleCast", "WideWeight", "check"]

if TYPE_CHECKING:
    Checked = CheckedModel
else:  # a deprecated name here; `unamp.Checked` is another class
    __getattr__ = deprecated_names(
        __name__,
        {"Checked": Deprecation(since="1.0.0", until="2.0.0", instead="unamp.onnx.CheckedModel")},
    )
