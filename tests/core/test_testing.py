"""`assert_computed` checks a promise against a trace, and prints a readable difference."""

from __future__ import annotations

from typing import Any

import pytest

import unamp
from unamp import OpRecord, Rule
from unamp.testing import assert_computed


@pytest.fixture
def trace() -> unamp.Trace:
    made = unamp.Trace()
    made.records += [
        OpRecord("linear", "linear", Rule.LOW, ("float32",), "bfloat16", "bfloat16"),
        OpRecord("softmax", "softmax", Rule.FP32, ("bfloat16",), "float32", "float32"),
        OpRecord("linear", "linear", Rule.LOW, ("float32",), "bfloat16", "bfloat16"),
        OpRecord("conv2d", "conv2d", Rule.LOW, ("float32",), "float32", "float16", emulated=True),
    ]
    return made


def test_what_holds_passes(trace: unamp.Trace) -> None:
    assert_computed(trace, linear="bfloat16", softmax="float32")
    assert_computed(
        trace, {"torch.nn.functional.linear": "bf16", "ops.Softmax": "fp32"}, conv2d="half"
    )
    assert unamp.testing.assert_computed is assert_computed


def test_what_does_not_is_a_table(trace: unamp.Trace) -> None:
    trace.records.append(
        OpRecord("linear", "linear", Rule.FP32, ("float32",), "float32", "float32")
    )
    with pytest.raises(AssertionError) as caught:
        assert_computed(trace, linear="bfloat16", matmul="bfloat16", softmax="float32")
    assert str(caught.value).splitlines() == [
        "2 operations not as promised",
        "operation  promised  ran",
        "linear     bfloat16  bfloat16 2x, float32 1x",
        "matmul     bfloat16  did not run",
        "other operations in the trace: conv2d",
    ]


@pytest.mark.parametrize(
    ("promised", "error", "message"),
    [
        ({}, ValueError, "nothing is promised"),
        ({"linaer": "float32"}, ValueError, "unknown operation 'linaer'; did you mean"),
        ({"linear": "fp12"}, ValueError, "unknown dtype 'fp12'"),
        ({"linear": 3}, TypeError, "not int"),
    ],
)
def test_a_promise_that_means_nothing_is_an_error(
    trace: unamp.Trace, promised: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        assert_computed(trace, promised)


def test_what_is_no_trace_is_named() -> None:
    with pytest.raises(
        TypeError, match="must be a trace, as unamp.trace\\(\\) gives one; got dict"
    ):
        assert_computed({}, linear="float32")  # type: ignore[arg-type]


def test_pytest_offers_it(assert_computed: Any, trace: unamp.Trace) -> None:
    assert_computed(trace, softmax="float32")
