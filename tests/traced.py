"""The promises of `unamp.trace` on every framework.

Each framework's folder tests them on its own networks.
"""

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
from unamp import AmpWarning, Policy, amp_warnings
from unamp.adapter.records import Gradient, OpRecord, Underflow, Values
from unamp.adapter.registry import adapter_for


def values_are_those_of(record: OpRecord | Gradient, result: np.ndarray) -> None:
    """Check the statistics in a record against NumPy's of the result."""
    flat = result.astype(np.float64).reshape(-1)
    places = [n * len(flat) // 64 for n in range(64)] if len(flat) > 64 else list(range(len(flat)))
    assert record.values is not None
    assert record.values.shape == result.shape
    assert record.values[2:5] == pytest.approx([abs(flat).max(), flat.mean(), np.linalg.norm(flat)])
    assert record.values.sample == tuple(flat[places])


def another_thread_is_not_recorded(call: Callable[[], object]) -> None:
    """Check that another thread's operations are not in this thread's trace."""
    with unamp.trace() as trace:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert trace.records == []


def results_do_not_depend_on_a_trace(
    run: Callable[[AbstractContextManager[object]], Sequence[np.ndarray]],
) -> None:
    """Check that values and gradients are equal without a trace and with a trace of either kind.

    The trace is open around the traced code.
    """
    plain, *traced = [
        run(trace) for trace in (nullcontext(), unamp.trace(), unamp.trace(values=True))
    ]
    for found in traced:
        assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))


def nothing_is_kept_of(made: Callable[[], Iterable[object]]) -> None:
    """Check that an open trace keeps no reference to the network that ran.

    Nor does it keep the network's input and result.
    """
    with unamp.trace(values=True) as trace:
        gone = [weakref.ref(value) for value in made()]
        gc.collect()
        assert [ref() for ref in gone] == [None] * len(gone)
    assert trace.records


def no_number_is_looked_at(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Check a trace without values."""
    monkeypatch.setattr(Values, "of", lambda *args: pytest.fail("a result was looked at"))
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        call()
    assert {record.values for record in trace.records} == {None}


def precisions_are_compared(call: Callable[[], object]) -> None:
    """Compare a float32 run with a low one, the worst operation first; and with itself."""
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


def work_is_counted(calls: Mapping[str, tuple[Callable[[], object], int]]) -> None:
    """Check the products of operations against hand-counted ones, in float32 and low.

    Args:
        calls: for each operation, a call that runs it, and its number of products.
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
            read, written = (
                2 if dtype == "bfloat16" else 4 for dtype in (found[0].compute, found[0].output)
            )
            inputs = [math.prod(size or 0 for size in shape) for shape in found[0].input_shapes]
            assert work.bytes == read * sum(inputs) + written * math.prod(
                size or 0 for size in found[0].output_shape or ()
            )


def a_graph_is_warned_of(
    call: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a compiled graph that runs in a trace, which the trace does not see.

    The place that calls the graph gets a warning, once.
    """
    monkeypatch.setattr(amp_warnings, "_given", set())
    trace = unamp.Trace()

    def run() -> None:
        for _ in range(2):
            with trace, unamp.autocast(dtype="bfloat16"):
                call()

    with pytest.warns(AmpWarning, match=said) as given:
        run()
    assert trace.records == []
    assert [each.filename for each in given if each.category is AmpWarning] == [
        call.__code__.co_filename
    ]


# --- tests that a folder imports: on a network, which its `made` returns with the input -----------


def test_other_threads_are_not_recorded(request: pytest.FixtureRequest) -> None:
    network, given = request.module.made()
    another_thread_is_not_recorded(lambda: network(given))


def test_without_values_no_number_is_looked_at(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, given = request.module.made()
    no_number_is_looked_at(monkeypatch, lambda: network(given))


def test_a_float32_run_and_a_low_one_are_compared(request: pytest.FixtureRequest) -> None:
    network, given = request.module.made()
    precisions_are_compared(lambda: network(given))


def test_a_trace_keeps_no_tensor_and_no_network(
    request: pytest.FixtureRequest, framework: str
) -> None:
    def made() -> list[object]:
        network, given = request.module.made()
        with unamp.autocast(dtype="bfloat16"):
            result = network(given)
        # MindSpore keeps tensors itself
        return [network] if framework == "mindspore" else [network, given, result]

    nothing_is_kept_of(made)


def test_every_operation_says_in_which_layer_it_ran(
    request: pytest.FixtureRequest, framework: str
) -> None:
    """Check `PLACES` of the folder: the operations of its network, each with its layer."""
    network, given = request.module.made()
    ops = adapter_for(framework).operations()
    alone = ops.tensor(np.ones(3, np.float32))
    for policy in (
        Policy("O0"),
        Policy("O1", "bfloat16"),
        Policy("O2", "float16", preset=framework),
    ):
        with unamp.trace() as trace, unamp.policy_region(policy):
            network(given)
            ops["exp"](alone)
        found = [(record.op, record.layer) for record in trace.records if record.op != "index"]
        assert found == [*request.module.PLACES, ("exp", None)]


def test_the_first_infinity_has_its_layer(request: pytest.FixtureRequest) -> None:
    """Check that the first operation of `PLACES` makes the first numbers that are not finite.

    Its input has numbers that float16 cannot hold.
    """
    network, given = request.module.made()
    with unamp.trace(values=True) as trace, unamp.autocast(dtype="float16"):
        network(given * 1e30)
    first = trace.nonfinite[0]
    assert (first.op, first.layer) == request.module.PLACES[0]
    assert first.values is not None
    assert first.values.nonfinite == math.prod(first.values.shape)


@pytest.mark.parametrize(
    "policy", [Policy("O0"), Policy("O1", "bfloat16"), Policy("O3", "float16")], ids=repr
)
def test_values_are_those_of_the_result(framework: str, policy: Policy) -> None:
    """Check large tensors, whose low results are views of float32 numbers where low is emulated."""
    ops = adapter_for(framework).operations()
    drawn = np.random.default_rng(0).standard_normal((300, 70)).astype(np.float32)
    given, turned = ops.tensor(drawn), ops.tensor(drawn.T.copy())
    with unamp.trace(values=True) as trace, unamp.policy_region(policy):
        results = [ops["matmul"](given, turned), ops["exp"](given), ops["sum"](given)]
    assert [record.op for record in trace.records] == ["matmul", "exp", "sum"]
    for record, result in zip(trace.records, results, strict=True):
        values_are_those_of(record, ops.numpy(result))


def test_asking_for_operations_leaves_no_record(framework: str) -> None:
    """Check that an adapter's own computations, to get ready or to read a tensor, are not recorded.

    They are not part of a network.
    """
    with unamp.trace(values=True) as trace:
        operations = adapter_for(framework).operations()
        operations.numpy(operations.tensor(np.ones((2, 3), np.float32)))
    assert trace.records == []


def test_the_first_infinity_is_found_where_it_comes_from(framework: str) -> None:
    ops = adapter_for(framework).operations()
    large, given = (
        ops.tensor(np.full((8, 4), 1e4, np.float32)),
        ops.tensor(np.ones((2, 8), np.float32)),
    )
    with unamp.trace(values=True) as trace, unamp.autocast(dtype="float16"):
        ops["relu"](ops["matmul"](given, large))
    assert [
        (record.op, record.values.nonfinite) for record in trace.nonfinite if record.values
    ] == [("matmul", 8), ("relu", 8)]


def test_underflow_is_seen(framework: str) -> None:
    """Check the exponential function on small numbers, a quarter of each of four kinds."""
    ops = adapter_for(framework).operations()
    given = np.repeat(np.float32([0.0, -5.0, -12.0, -30.0]), 5)
    # numbers that are zero in float16 show no underflow
    for enabled, output, flushed in ((True, "float16", 0.0), (False, "float32", 0.25)):
        with (
            unamp.trace(values=True) as trace,
            unamp.autocast(dtype="float16", allow="exp", enabled=enabled),
        ):
            ops["exp"](ops.tensor(given))
        (record,) = trace.records
        assert record.output == output
        assert record.values is not None
        assert record.values.underflow_in("float16") == Underflow("float16", 0.25, flushed)


__all__ = [name for name in globals() if name.startswith("test_")]
