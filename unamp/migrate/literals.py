"""The values of expressions, where the source alone shows them."""

from __future__ import annotations

import ast
import re
from typing import Any

import libcst as cst

from unamp.dtypes import dtype_name

#: The value of an expression that only a run knows.
UNKNOWN: Any = object()

_DTYPES = {
    "half": "float16",
    "float16": "float16",
    "fp16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
}

_ANY = cst.Module([])

_COMMENT = re.compile(r"(?:^|\s)#(?=[\s\w])")


def code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return _ANY.code_for_node(node)


def shortened_code(node: cst.CSTNode) -> str:
    """Return the source of a node in one line, for a message."""
    whole = "\n".join(map(_without_comment, code(node).split("\n")))
    line = " ".join(whole.split()).replace("( ", "(").replace(", )", ")").replace(",)", ")")
    return line if len(line) <= 100 else f"{line[:99]}…"


def _without_comment(line: str) -> str:
    found = _COMMENT.search(line, max(line.rfind('"'), line.rfind("'")) + 1)
    return line if found is None else line[: found.start()]


def literal(node: cst.CSTNode | None) -> Any:
    """Return the value of a literal, or a list, tuple, set or dict of literals; else `UNKNOWN`."""
    if node is None:
        return UNKNOWN
    try:
        return ast.literal_eval(code(node).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return UNKNOWN


def static_dtype(node: cst.CSTNode | None) -> Any:
    """Return the name of a dtype written as a string or a framework's attribute, else `UNKNOWN`."""
    value = literal(node)
    if value is None:
        return None
    if isinstance(value, str):
        return dtype_name(value)
    return _DTYPES.get(node.attr.value, UNKNOWN) if isinstance(node, cst.Attribute) else UNKNOWN
