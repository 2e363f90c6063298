"""Every operation type on grappler's own lists gets the dtype of its list.

The lists are read from the installed header.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf
from unamp_conformance.check.cases import cases

import unamp
from unamp.adapter.registry import adapter_for
from unamp.vocabulary import vocabulary

HEADER = (
    Path(tf.__file__).parent
    / "include/tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
)

#: The class in the header that makes each dtype's lists: CUDA's for float16, oneDNN's for bfloat16.
CLASSES = {"float16": "AutoMixedPrecisionListsFp16", "bfloat16": "AutoMixedPrecisionListsMkl"}

#: Operations without an example call in floats, or whose call reaches another operation type.
LEFT_OUT = {
    "bucketize",
    "clone",
    "identity",
    "reflection_pad2d",
    "multi_head_attention",
    "fractional_max_pool2d",
}


def listed(dtype: str) -> dict[str, set[str]]:
    """Return the operation types in each list."""
    text = re.sub(
        r"if \(use_onednn_\) \{.*?\n    \}", "", HEADER.read_text("utf-8"), flags=re.DOTALL
    )
    body = re.search(rf"^class {CLASSES[dtype]}\b(.*?)^}};", text, re.DOTALL | re.MULTILINE)
    assert body
    found = {}
    for name in ("Allow", "Infer", "Deny", "Clear"):
        method = re.search(rf"{name}List\(\) override \{{(.*?)\n  \}}\n", body[1], re.DOTALL)
        assert method
        found[name.lower()] = set(re.findall(r'"(\w+)"', method[1]))
    return found


def _computes(op: str) -> bool:
    case = cases().get(op)
    if case is None or case.insensitive or vocabulary()[op].group in ("shape", "creation", "cast"):
        return False
    return bool(case.eligible(case.inputs(0)))


def entries():
    operations = adapter_for("tensorflow").operations()
    for dtype in CLASSES:
        for name, types in listed(dtype).items():
            found = {}
            for kind in sorted(types):
                try:
                    op = vocabulary().resolve(kind, prefer="tensorflow")
                except ValueError:
                    continue
                if op in operations.names() and op not in LEFT_OUT and _computes(op):
                    found[op] = kind
            for op, kind in found.items():
                yield pytest.param(name, op, dtype, id=f"{dtype}-{name}-{kind}")


ENTRIES = list(entries())


def test_the_header_was_read():
    assert len(ENTRIES) > 90
    assert "MatMul" in listed("bfloat16")["allow"]
    assert "Sum" in listed("float16")["deny"]


@pytest.mark.parametrize(("name", "op", "dtype"), ENTRIES)
def test_an_entry_computes_in_the_dtype_of_its_list(name, op, dtype):
    operations, case, low = adapter_for("tensorflow").operations(), cases()[op], tf.as_dtype(dtype)
    eligible = case.eligible(case.inputs(0))
    expected = {
        "allow": (low, low), "deny": (tf.float32, tf.float32), "infer": (tf.float32, low),
        "clear": (tf.float32, low)
    }[name]  # fmt: skip
    for given, wanted in zip((tf.float32, low), expected, strict=True):
        tensors = [operations.tensor(array) for array in case.inputs(0)]
        tensors = [
            tf.cast(tensor, given) if n in eligible else tensor for n, tensor in enumerate(tensors)
        ]
        with unamp.trace() as trace, unamp.autocast(dtype=dtype, preset="tensorflow"):
            case.call(operations[op], tensors)
        assert next(record.compute for record in trace.records if record.op == op) == wanted.name
