"""The promises of `unamp.trace` on every framework. Each framework's folder asks it of its own networks."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

import unamp
import unamp.tracing
from unamp.adapter.records import Gradient, OpRecord, Underflow, Values
from unamp.adapter.registry import adapter_for


def values_are_those_of(record: OpRecord | Gradient, result: np.ndarray) -> None:
    """The statistics in a record, beside those that NumPy finds in the result."""
    flat = result.astype(np.float64).reshape(-1)
    places = [n * len(flat) // 64 for n in range(64)] if len(flat) > 64 else list(range(len(flat)))
    assert record.values is not None
    assert record.values.shape == result.shape
    assert record.values[2:5] == pytest.approx([abs(flat).max(), flat.mean(), np.linalg.norm(flat)])
    assert record.values.sample == tuple(flat[places])


def another_thread_is_not_recorded(call: Callable[[], object]) -> None:
    """Check that what it runs is nothing of this thread's trace."""
    with unamp.trace() as trace:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert trace.records == []


def results_do_not_depend_on_a_trace(run: Callable[[AbstractContextManager[object]], Sequence[np.ndarray]]) -> None:
    """Values and gradients, without a trace and with either kind of trace open around what is traced."""
    plain, *traced = [run(trace) for trace in (nullcontext(), unamp.trace(), unamp.trace(values=True))]
    for found in traced:
        assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))


def nothing_is_kept_of(made: Callable[[], Iterable[object]]) -> None:
    """While the trace is open still, nobody holds the network that ran, its input and its result."""
    with unamp.trace(values=True) as trace:
        gone = [weakref.ref(value) for value in made()]
        gc.collect()
        assert [ref() for ref in gone] == [None] * len(gone)
    assert trace.records


def no_number_is_looked_at(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Where the trace was not asked for values."""
    monkeypatch.setattr(Values, "of", lambda *args: pytest.fail("a result was looked at"))
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        call()
    assert {record.values for record in trace.records} == {None}


def precisions_are_compared(call: Callable[[], object]) -> None:
    """A float32 run beside a low one, the worst operation first; and beside itself."""
    with unamp.trace(values=True) as exact:
        call()
    with unamp.trace(values=True) as low, unamp.autocast(dtype="bfloat16"):
        call()
    compared = unamp.compare_traces(exact, low)
    assert len(compared.operations) == len(exact.records) == len(low.records)
    assert not compared.only_in_reference + compared.only_in_other
    errors = [each.error for each in compared.operations]
    assert errors == sorted(errors, reverse=True)
    assert all(1e-5 < error < 5e-2 for error in errors)
    assert {each.error for each in unamp.compare_traces(exact, exact).operations} == {0.0}


def asking_for_operations_leaves_no_record(framework: str) -> None:
    """What an adapter runs to make its operations ready, and to read a tensor, is no part of a network."""
    with unamp.trace(values=True) as trace:
        operations = adapter_for(framework).operations()
        operations.numpy(operations.tensor(np.ones((2, 3), np.float32)))
    assert trace.records == []


def work_is_counted(calls: Mapping[str, tuple[Callable[[], object], int]]) -> None:
    """The products of operations, beside those counted by hand, in float32 and low.

    Args:
        calls: for each operation a call that runs it, and how many products that multiplies.
    """
    for op, (call, products) in calls.items():
        for region in (nullcontext(), unamp.autocast(dtype="bfloat16", allow=op)):
            with unamp.trace() as trace, region:
                call()
            found = [record for record in trace.records if record.op == op]
            assert len(found) == 1, (op, trace.records)
            work = unamp.tracing.work_of(found[0])
            assert work is not None
            assert work.products == products, (op, found)
            read, written = (2 if dtype == "bfloat16" else 4 for dtype in (found[0].compute, found[0].output))
            inputs = [math.prod(size or 0 for size in shape) for shape in found[0].input_shapes]
            assert work.bytes == read * sum(inputs) + written * math.prod(size or 0 for size in found[0].output_shape or ())


def underflow_is_seen(tensor: Callable[[np.ndarray], object], exp: Callable[[object], object]) -> None:
    """An exponential function of numbers of which each quarter is another kind of small."""
    with unamp.trace(values=True) as trace, unamp.autocast(dtype="float16", allow="exp"):
        exp(tensor(np.repeat(np.float32([0.0, -5.0, -12.0, -30.0]), 5)))
    (record,) = trace.records
    assert record.output == "float16"
    assert record.values is not None
    assert record.values.underflow_in("float16") == Underflow("float16", 0.25, 0.0)  # what is zero already tells of nothing
    with unamp.trace(values=True) as trace:
        exp(tensor(np.repeat(np.float32([0.0, -5.0, -12.0, -30.0]), 5)))
    (record,) = trace.records
    assert record.values is not None
    assert record.values.underflow_in("float16") == Underflow("float16", 0.25, 0.25)
