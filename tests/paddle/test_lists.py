"""Every operation on Paddle's official lists gets, on a CPU, the dtype documented for a GPU."""

import paddle
import pytest
from paddle.amp import amp_lists
from paddle.nn import functional as F
from unamp_conformance.check.cases import cases
from unamp_paddle.facts import facts

import unamp
from unamp.adapter.registry import adapter_for
from unamp.vocabulary import vocabulary

LISTED = {
    "float16": (amp_lists.FP16_WHITE_LIST, amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST),
    "bfloat16": (amp_lists.BF16_WHITE_LIST, amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST),
}

#: Operations without a CPU kernel.
WITHOUT_A_KERNEL = ("fused_rotary_position_embedding", "margin_cross_entropy", "rms_norm")


def _positive(*shape):
    return paddle.rand(list(shape)) * 0.8 + 0.1


#: Calls for listed names that are no function with a canonical signature. Fused operations run on
#: GPUs only.
_BY_HAND = {
    "fake_quantize_dequantize_abs_max": lambda low: paddle._C_ops.fake_quantize_dequantize_abs_max(
        _positive(3, 4), 8, 1
    )[0],
    "log_loss": lambda low: F.log_loss(_positive(4, 1).astype(low), _positive(4, 1)),
    "hsigmoid_loss": lambda low: F.hsigmoid_loss(
        _positive(4, 3).astype(low),
        paddle.to_tensor([0, 1, 4, 5]),
        5,
        _positive(4, 3),
        _positive(4, 1),
    ),
    "scatter": lambda low: paddle.scatter(
        _positive(4, 2).astype(low), paddle.to_tensor([0, 2]), _positive(2, 2).astype(low)
    ),
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
                if (
                    op in cases()
                    and op in operations
                    and op not in WITHOUT_A_KERNEL
                    and name not in _BY_HAND
                ):
                    yield pytest.param(
                        name, op, dtype if low else "float32", dtype, id=f"{name}-{dtype}"
                    )


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
    record = next(
        r
        for r in trace.records
        if op in (r.op, facts().synonyms.get(r.op)) or r.op in vocabulary()[op].members
    )
    assert record.compute == expected


@pytest.mark.parametrize("dtype", LISTED)
@pytest.mark.parametrize("name", _BY_HAND)
def test_official_entry_without_a_canonical_signature(name, dtype):
    white, black = LISTED[dtype]
    expected = dtype if name in white else "float32"
    with unamp.amp_guard(dtype=dtype):
        result = _BY_HAND[name](dtype if name in black else "float32")
    assert str(result.dtype) == f"paddle.{expected}"


@pytest.mark.parametrize("dtype", LISTED)
def test_every_official_name_is_decided_as_listed(dtype):
    policy = unamp.Policy("O1", dtype, preset="paddle")
    white, black = LISTED[dtype]
    decided = {
        name: policy.decide(vocabulary().resolve(name, prefer="paddle"))
        for name in (*white, *black)
    }
    assert {name for name, rule in decided.items() if rule is unamp.Rule.LOW} == set(white)
    assert {name for name, rule in decided.items() if rule is unamp.Rule.FP32} == set(black)


def test_native_is_what_paddle_does_itself():
    # On a CPU, Paddle's own AMP does nothing.
    x = paddle.rand([4, 4])
    with unamp.autocast(preset="native", dtype="float16"):
        assert (x @ x).dtype == paddle.float32
