"""Paddle's official lists, operation by operation, on a CPU: the dtypes that Paddle documents for a GPU."""

import paddle
import pytest
from paddle.amp import amp_lists
from unamp_conformance.cases import cases
from unamp_paddle.facts import facts

import unamp
from unamp.adapter import adapter_for
from unamp.vocabulary import vocabulary

LISTED = {
    "float16": (amp_lists.FP16_WHITE_LIST, amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST),
    "bfloat16": (amp_lists.BF16_WHITE_LIST, amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST),
}


def _runnable():
    operations = adapter_for("paddle").operations().names()
    for dtype, (white, black) in LISTED.items():
        for names, low in ((white, True), (black, False)):
            for name in sorted(names):
                try:
                    op = vocabulary().resolve(name, prefer="paddle")
                except ValueError:
                    continue
                if op in cases() and op in operations and op not in ("rms_norm",):
                    yield pytest.param(name, op, dtype if low else "float32", dtype, id=f"{name}-{dtype}")


@pytest.mark.parametrize(("name", "op", "expected", "dtype"), list(_runnable()))
def test_official_entry(name, op, expected, dtype):
    operations = adapter_for("paddle").operations()
    case = cases()[op]
    tensors = [operations.tensor(array) for array in case.inputs(0)]
    eligible = case.eligible(case.inputs(0))
    if expected == "float32":
        tensors = [t.astype(dtype) if n in eligible else t for n, t in enumerate(tensors)]
    with unamp.trace() as trace, unamp.amp_guard(dtype=dtype):
        case.call(operations[op], tensors)
    record = next(r for r in trace.records if op in (r.op, facts().synonyms.get(r.op)) or r.op in vocabulary()[op].members)
    assert record.compute == expected


def test_native_is_what_paddle_does_itself():
    # On a CPU that is nothing at all.
    x = paddle.rand([4, 4])
    with unamp.autocast(preset="native", dtype="float16"):
        assert (x @ x).dtype == paddle.float32
