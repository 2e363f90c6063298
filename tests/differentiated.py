"""The promises of `unamp.trace(gradients=True)` on every framework.

Each framework's folder tests them on its own networks.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import registered
import traced

import unamp
from unamp.adapter.records import Gradient, Underflow
from unamp.adapter.registry import adapter_for

X = np.linspace(-1.0, 1.0, 100, dtype=np.float32)
#: Gradients: a quarter is subnormal in float16, a quarter becomes zero in it, a quarter is zero.
W = np.repeat(np.float32([1.5, 1e-6, 1e-9, 0.0]), 25)


def _weighted(framework: str, w: np.ndarray = W) -> tuple[unamp.Trace, Any, list[Any]]:
    """Return a trace of the sum of exp(x) * w and of its gradients, the sum, and the gradients."""
    ops = adapter_for(framework).operations()
    weights, x = ops.tensor(w), ops.tensor(X, requires_grad=True)
    with unamp.trace(gradients=True) as trace:
        value, gradients = ops.value_and_grad(
            lambda x: ops["sum"](ops["mul"](ops["exp"](x), weights)), [x]
        )
    return trace, value, gradients


def _of(trace: unamp.Trace, op: str) -> Gradient:
    """Return the only gradient of an operation's result."""
    (found,) = (each for each in trace.gradients if trace.records[each.record].op == op)
    return found


def gradients_are_those_of_numpy(framework: str) -> None:
    """Check that each operation's result has its gradient, with NumPy's numbers, and its record.

    The gradient of a later operation comes first.
    """
    trace, _, (gradient,) = _weighted(framework)
    np.testing.assert_allclose(
        adapter_for(framework).operations().numpy(gradient), np.exp(X) * W, rtol=1e-5
    )
    assert [trace.records[each.record].op for each in trace.gradients] == ["sum", "mul", "exp"]
    for op, expected in (("sum", np.ones(())), ("mul", np.ones(100)), ("exp", W)):
        traced.values_are_those_of(_of(trace, op), expected)
    found = _of(trace, "exp")
    assert (found.dtype, found.zeros, found.scale, found.left_out) == ("float32", 0.25, None, "")
    assert found.values is not None
    assert found.values.underflow_in("float16") == Underflow("float16", 0.25, 0.25)
    assert "gradients too small for float16" in trace.table()
    assert unamp.Trace.from_json(trace.to_json()).gradient_table() == trace.gradient_table()


def gradients_are_low_where_results_are(framework: str) -> None:
    """Check that in a region the gradient of a low result is low, as the framework computes it."""
    ops = adapter_for(framework).operations()
    with (
        unamp.trace(gradients=True) as trace,
        unamp.autocast(dtype="bfloat16", allow=["exp"], deny=["mul"]),
    ):
        ops.value_and_grad(
            lambda x: ops["sum"](ops["mul"](ops["exp"](x), ops.tensor(W))),
            [ops.tensor(X, requires_grad=True)],
        )
    assert (_of(trace, "exp").dtype, _of(trace, "mul").dtype) == ("bfloat16", "float32")


def the_first_that_is_not_finite_is_named(framework: str) -> None:
    """Check the first gradient that is not finite.

    The root of zero has an infinite derivative, so that the gradient of its input is not finite.
    """
    ops = adapter_for(framework).operations()
    with unamp.trace(gradients=True, values=True) as trace:
        ops.value_and_grad(
            lambda x: ops["sum"](ops["sqrt"](ops["mul"](x, x))),
            [ops.tensor(np.float32([0.0, 1.0]), requires_grad=True)],
        )
    assert trace.nonfinite == []
    assert [trace.records[each.record].op for each in trace.nonfinite_gradients] == ["mul"]
    assert [trace.records[each.record].op for each in trace.gradients] == ["sum", "sqrt", "mul"]
    assert (
        "first gradient that is not finite: of operation 1 (mul); "
        "the one before it was of operation 2 (sqrt)"
    ) in trace.table()


def a_layer_is_named(run: Callable[[], object], layer: str) -> None:
    """Check that the layer whose gradients float16 would lose comes first, and is in the remarks.

    Args:
        run: computes a network forward and backward. The parts behind `layer` make its gradients
            small.
        layer: the layer's name.
    """
    with unamp.trace(gradients=True) as trace:
        run()
    lines = [
        line for line in trace.gradient_summary() if line.layer is not None and not line.parameter
    ]
    assert lines[0].layer == layer, trace.gradient_table()
    assert lines[0].subnormal + lines[0].flushed > 0.5
    (said,) = (
        each
        for each in trace.remarks()
        if each.startswith("gradients too small for float16, by layer: ")
    )
    assert f"{layer} " in said


def parameters_have_theirs(run: Callable[[], Mapping[str, np.ndarray]]) -> None:
    """Check that the whole gradient of each parameter is recorded once in each chosen step.

    The record has the parameter's layer and its name.

    Args:
        run: computes, forward and backward, a network with a layer that is called twice, and
            returns the gradients of its parameters by the names that they should have.
    """
    with unamp.trace(gradients=True, steps=range(1, 3)) as trace:
        for _ in range(4):
            expected = run()
            trace.step()
    run()
    found = [each for each in trace.gradients if each.parameter]
    assert sorted((each.parameter, each.step) for each in found) == sorted(
        (name, step) for name in expected for step in (1, 2)
    )
    for each in found:
        assert (each.record, each.left_out) == (None, "")
        traced.values_are_those_of(each, np.asarray(expected[each.parameter]))
    lines = {line.parameter: line for line in trace.gradient_summary()}
    for name in expected:
        assert (lines[name].layer, lines[name].op, lines[name].times) == (
            name.rpartition(".")[0],
            "",
            2,
        )
    again = unamp.Trace.from_json(trace.to_json())
    assert (again.gradient_table(), again.to_json()) == (trace.gradient_table(), trace.to_json())


def a_loss_scale_is_told(scaled: Callable[[unamp.GradScaler], object]) -> None:
    """Check that the gradients of a scaled loss are recorded scaled, with the scale.

    Args:
        scaled: computes a loss with a layer, scales it with a scaler, and runs the backward pass.
    """
    with unamp.trace(gradients=True) as trace:
        scaled(unamp.GradScaler(init_scale=1024.0))
    assert trace.gradients
    assert {each.scale for each in trace.gradients} == {1024.0}
    assert trace.gradients[0].values is not None
    assert trace.gradients[0].values.max_abs == pytest.approx(1024.0)


def gradients_do_not_depend_on_a_trace(
    run: Callable[[AbstractContextManager[object]], Sequence[np.ndarray]],
) -> unamp.Trace:
    """Check that values, gradients and random numbers are equal with a trace and without one.

    They are equal bit by bit.
    """
    trace = unamp.trace(gradients=True)
    plain, traced = run(nullcontext()), run(trace)
    for n, (a, b) in enumerate(zip(plain, traced, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"result {n}")
    assert trace.gradients
    assert not [each for each in trace.gradients if each.left_out], trace.gradient_table()
    return trace


def a_later_backward_pass_is_not_recorded(forward: Callable[[], Callable[[], object]]) -> None:
    """Check that a backward pass after a trace is in no trace: not in this one, nor in an open one.

    The closed trace remarks that it saw none.
    """
    with unamp.trace(gradients=True) as trace:
        backward = forward()
    with unamp.trace(gradients=True) as other:
        backward()
    assert trace.records
    assert trace.gradients == other.gradients == []
    assert "no gradient of a result was seen" in trace.table()


def no_graph_is_kept(made: Callable[[], Iterable[object]]) -> None:
    """Check that an open trace keeps no object of a network that ran.

    It does not matter whether its backward pass ran.
    """
    with unamp.trace(gradients=True) as trace:
        gone = [weakref.ref(value) for value in made()]
        gc.collect()
        assert [ref() for ref in gone] == [None] * len(gone)
    assert trace.records


def a_registered_operation_has_one(framework: str) -> None:
    """Check that a registered operation's result has its gradient."""
    with registered.registered(framework, "low") as ops:
        x = ops.tensor(registered.X, requires_grad=True)
        with unamp.trace(gradients=True) as trace:
            ops.value_and_grad(
                lambda x: ops["sum"](registered.product(x, ops.tensor(registered.W))), [x]
            )
    assert [(record.op, record.layer) for record in trace.records] == [
        (registered.NAME, None),
        ("sum", None),
    ]
    found = _of(trace, registered.NAME)
    assert found.values is not None
    assert found.values.sample == (1.0,) * 4


def only_chosen_steps_are_recorded(framework: str) -> None:
    """Check a loop of four steps: only the middle two are recorded, with their gradients."""
    ops = adapter_for(framework).operations()
    with unamp.trace(gradients=True, values=True, steps=range(1, 3)) as trace:
        for step in range(4):
            x = ops.tensor(np.float32([step, 1.0]), requires_grad=True)
            ops.value_and_grad(lambda x: ops["sum"](ops["mul"](x, x)), [x])
            trace.step()
    assert [(record.op, record.step) for record in trace.records] == [
        ("mul", 1),
        ("sum", 1),
        ("mul", 2),
        ("sum", 2),
    ]
    assert [record.values.max_abs for record in trace.records if record.values] == [
        1.0,
        2.0,
        4.0,
        5.0,
    ]
    assert [each.record for each in trace.gradients] == [1, 0, 3, 2]


@pytest.mark.parametrize(
    "promise",
    [
        gradients_are_those_of_numpy,
        gradients_are_low_where_results_are,
        the_first_that_is_not_finite_is_named,
        only_chosen_steps_are_recorded,
        a_registered_operation_has_one,
    ],
)
def test_every_framework_promises(framework: str, promise: Callable[[str], None]) -> None:
    promise(framework)


# --- where parameters hold their gradients --------------------------------------------------------
# They use `network` of the folder, on an input that `rows` of the folder makes.


def test_a_loss_scale_is_told(request: pytest.FixtureRequest) -> None:
    of = request.module
    a_loss_scale_is_told(lambda scaler: scaler.scale(of.network()(of.rows()).sum()).backward())


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_pass_is_not_reported(
    request: pytest.FixtureRequest, inside: bool, gradients: bool
) -> None:
    """Check that the reading of a gradient follows no rule, inside of a region or without one."""
    region = unamp.autocast(dtype="bfloat16", level="O3") if inside else nullcontext()
    with unamp.trace(gradients=gradients) as trace, region:
        request.module.network()(request.module.rows()).sum().backward()
    assert " ".join(record.op for record in trace.records) == (
        "linear relu linear layer_norm linear sum"
    )
    assert len([each for each in trace.gradients if each.record is not None]) == 6 * gradients


def test_a_later_backward_pass_is_not_recorded(request: pytest.FixtureRequest) -> None:
    a_later_backward_pass_is_not_recorded(
        lambda: request.module.network()(request.module.rows()).sum().backward
    )


def test_no_graph_is_kept(request: pytest.FixtureRequest) -> None:
    def made() -> Iterable[object]:
        for backward in (True, False):
            network = request.module.network()
            loss = network(request.module.rows()).sum()
            if backward:
                loss.backward()
            yield from (network, loss)

    no_graph_is_kept(made)


__all__ = [name for name in globals() if name.startswith("test_")]
