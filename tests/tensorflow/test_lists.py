"""TensorFlow's own lists, read from the installed header, operation type by operation type: the dtypes that they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

import unamp
from unamp import Policy
from unamp.adapter import adapter_for
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_conformance.cases import cases

HEADER = Path(tf.__file__).parent / "include/tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"

#: The class of the header that makes each dtype's lists on this build.
CLASSES = {"float16": "AutoMixedPrecisionListsFp16", "bfloat16": "AutoMixedPrecisionListsMkl"}


def listed(dtype: str) -> dict[str, set[str]]:
    """The operation types in each list of the header."""
    text = HEADER.read_text("utf-8")
    body = text.split(f"class {CLASSES[dtype]} ", 1)[1].split("\nclass ", 1)[0]
    methods = {"allow": "AllowList", "infer": "InferList", "deny": "DenyList", "clear": "ClearList"}
    found = {}
    for name, method in methods.items():
        match = re.search(rf"{method}\(\) override {{(.*?)return", body, re.S)
        found[name] = set(re.findall(r'"(\w+)"', match.group(1))) if match else set()
    return found


def entries():
    for dtype in CLASSES:
        for name, types in listed(dtype).items():
            for kind in sorted(types):
                try:
                    op = vocabulary().resolve(kind, prefer="tensorflow")
                except ValueError:
                    continue
                if op in cases() and not kind.endswith(("Grad", "GradV2", "GradV3", "BackpropFilter", "BackpropInputV2")):
                    yield pytest.param(name, kind, op, dtype, id=f"{dtype}-{name}-{kind}")


ENTRIES = list(entries())


def test_the_header_was_read():
    assert len(ENTRIES) > 120
    assert "MatMul" in listed("bfloat16")["allow"]
    assert "Sum" in listed("float16")["deny"]


@pytest.mark.parametrize(("name", "kind", "op", "dtype"), ENTRIES)
def test_an_entry_of_the_lists(name, kind, op, dtype):
    rule = Policy("O1", dtype, preset="tensorflow").decide(op)
    lists = preset("tensorflow")
    assert op in lists.listed(name, dtype)
    assert rule in {
        "allow": {unamp.Rule.LOW}, "deny": {unamp.Rule.FP32}, "infer": {unamp.Rule.WIDEST},
        "clear": {unamp.Rule.WIDEST, unamp.Rule.UNTOUCHED},
    }[name]  # fmt: skip


RUN = {
    "MatMul": "matmul", "BatchMatMulV2": "bmm", "Conv2D": "conv2d", "Conv3D": "conv3d", "Einsum": "einsum", "Exp": "exp",
    "Expm1": "expm1", "Pow": "pow", "SoftmaxCrossEntropyWithLogits": "cross_entropy", "Sum": "sum", "Mean": "mean",
    "Softmax": "softmax", "Tanh": "tanh", "AddV2": "add", "Mul": "mul", "Sigmoid": "sigmoid", "Relu": "relu", "MaxPool": "max_pool2d",
}  # fmt: skip


@pytest.mark.parametrize("dtype", list(CLASSES))
@pytest.mark.parametrize("kind", RUN)
def test_what_runs(kind, dtype):
    op, operations = RUN[kind], adapter_for("tensorflow").operations()
    where = next(name for name, types in listed(dtype).items() if kind in types)
    low = tf.as_dtype(dtype)
    for given, expected in ((tf.float32, low if where == "allow" else tf.float32), (low, tf.float32 if where == "deny" else low)):
        case = cases()[op]
        tensors = [operations.tensor(array) for array in case.inputs(0)]
        tensors = [tf.cast(t, given) if t.dtype == tf.float32 else t for t in tensors]
        with unamp.trace() as trace, unamp.autocast(dtype=dtype, preset="tensorflow"):
            case.call(operations[op], tensors)
        record = next(r for r in trace.records if r.op == op)
        assert record.compute == expected.name, (where, given)
