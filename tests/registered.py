"""The promises of `unamp.register_operation`, on every framework.

Each framework's folder tests them. 1 + 2^-9 is a number of float32 and not of bfloat16, and so is a
sum of eight of them. So the result shows, bit by bit, in which precision an operation computed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import unamp
from unamp.adapter import Operations
from unamp.adapter.registry import adapter_for

LOW = "bfloat16"
NAME = "tests::product"
X = np.full((2, 8), 1 + 2.0**-9, np.float32)
W = np.ones((8, 2), np.float32)
IN_FLOAT32, IN_LOW = 8 + 2.0**-6, 8.0

#: The framework's functions, which `product` uses: it is one function for all frameworks,
#: as a library's function is.
functions: Operations | None = None


def product(x: Any, w: Any) -> Any:
    """Return a product and a sum that changes nothing.

    They are two operations, of which one is on the allow list.
    """
    assert functions is not None
    return functions["add"](
        functions["matmul"](x, w), functions["zeros_like"](functions["matmul"](x, w))
    )


@contextmanager
def registered(framework: str, rule: Any) -> Iterator[Operations]:
    """Register `product` as an operation meanwhile."""
    global functions
    functions = adapter_for(framework).operations()
    registration = unamp.register_operation(NAME, product, rule=rule)
    try:
        yield functions
    finally:
        registration.undo()


def call(ops: Operations, dtype: str = "float32") -> tuple[str, float]:
    """Call `product`; return the dtype of its result, and one of the numbers."""
    x, w = (ops["cast"](ops.tensor(each), dtype=dtype) for each in (X, W))
    result = product(x, w)
    return ops.dtype(result), float(ops.numpy(ops["cast"](result, dtype="float32"))[0, 0])


#: Arguments of a region, the rule of the registered operation, and the result.
CASES: tuple[tuple[dict[str, Any], str, tuple[str, float]], ...] = (
    ({}, "low", (LOW, IN_LOW)),
    ({}, "float32", ("float32", IN_FLOAT32)),
    ({}, "widest", ("float32", IN_FLOAT32)),
    ({"level": "O2"}, "widest", (LOW, IN_LOW)),
    ({"level": "O2"}, "float32", ("float32", IN_FLOAT32)),
    ({"level": "O3"}, "float32", (LOW, IN_LOW)),
    ({"level": "OD"}, "widest", ("float32", IN_FLOAT32)),
    ({"preset": "none"}, "low", ("float32", IN_FLOAT32)),
    ({"preset": "paddle"}, "low", (LOW, IN_LOW)),
    ({"deny": NAME}, "low", ("float32", IN_FLOAT32)),
    ({"deny": ["tests::*"]}, "low", ("float32", IN_FLOAT32)),
    ({"deny": "group:registered"}, "low", ("float32", IN_FLOAT32)),
    ({"deny": "*"}, "low", ("float32", IN_FLOAT32)),
    ({"allow": NAME}, "float32", (LOW, IN_LOW)),
    ({"allow": ["group:registered"]}, "widest", (LOW, IN_LOW)),
    ({"deny": "matmul"}, "low", (LOW, IN_LOW)),  # operations inside it follow no rule
    ({"dtype": "float32"}, "low", ("float32", IN_FLOAT32)),
    ({"enabled": False}, "low", ("float32", IN_FLOAT32)),
)


def its_rule_decides(
    framework: str, arguments: dict[str, Any], rule: str, expected: tuple[str, float]
) -> None:
    with registered(framework, rule) as ops:
        with unamp.autocast(**{"dtype": LOW, **arguments}):
            assert call(ops) == expected
        assert call(ops) == ("float32", IN_FLOAT32)


def low_inputs_are_widened(framework: str) -> None:
    with registered(framework, "float32") as ops, unamp.autocast(dtype=LOW):
        assert call(ops, LOW) == ("float32", IN_LOW)


def the_function_itself_is_an_entry(framework: str) -> None:
    with registered(framework, "low") as ops, unamp.autocast(dtype=LOW, deny=[product]):
        assert call(ops) == ("float32", IN_FLOAT32)


def a_decorated_function_is_one(framework: str) -> None:
    with registered(framework, "float32") as ops:
        inner = product.__wrapped__  # type: ignore[attr-defined]
        registration = unamp.register_operation("tests::decorated", rule="low")
        decorated = registration(inner)
        x, w = ops.tensor(X), ops.tensor(W)
        with unamp.autocast(dtype=LOW):
            assert ops.dtype(decorated(x, w)) == LOW
        registration.undo()
        with unamp.autocast(dtype=LOW):
            assert ops.dtype(decorated(x, w)) == LOW  # operations inside it follow rules again
        with unamp.autocast(dtype=LOW, deny="matmul"):
            assert ops.dtype(decorated(x, w)) == "float32"


def gradients_flow_through_the_casts(framework: str) -> None:
    with registered(framework, "low") as ops:
        x, w = ops.tensor(X, requires_grad=True), ops.tensor(W, requires_grad=True)

        def total(x: Any, w: Any) -> Any:
            with unamp.autocast(dtype=LOW):
                low = product(x, w)
            return ops["sum"](ops["cast"](low, dtype="float32"))

        value, (dx, dw) = ops.value_and_grad(total, [x, w])
    assert float(ops.numpy(value)) == 4 * IN_LOW
    assert ops.dtype(dx) == ops.dtype(dw) == "float32"
    np.testing.assert_array_equal(ops.numpy(dx), np.full((2, 8), 2, np.float32))
    # the gradient comes from inputs that were rounded
    np.testing.assert_array_equal(ops.numpy(dw), np.full((8, 2), 2, np.float32))


def a_trace_shows_it_as_one(framework: str) -> None:
    with registered(framework, "low") as ops, unamp.trace() as trace, unamp.autocast(dtype=LOW):
        product(ops.tensor(X), ops.tensor(W))
    (record,) = (each for each in trace.records if each.op == NAME)
    assert record.rule is unamp.Rule.LOW
    assert (record.inputs, record.compute, record.output) == (("float32", "float32"), LOW, LOW)
    assert (record.input_shapes, record.output_shape) == (((2, 8), (8, 2)), (2, 2))
    assert (record.framework, record.native) == (framework, "product")
    assert not [each for each in trace.records if each.op == "matmul"]


def a_shadow_shows_its_own_error(framework: str) -> None:
    with registered(framework, "widest") as ops, unamp.trace(shadow=LOW, values=True) as trace:
        own = product(ops.tensor(X), ops.tensor(W))
    assert float(ops.numpy(own)[0, 0]) == IN_FLOAT32
    (record,) = trace.records
    assert (record.op, record.compute) == (NAME, "float32")
    assert record.shadow is not None
    assert record.shadow.left_out == ""
    assert record.shadow.error == pytest.approx((IN_FLOAT32 - IN_LOW) / IN_FLOAT32)


def a_shadow_is_left_out(draw: Callable[[Any], Any], x: Any, why: str) -> None:
    """Check that a second run is left out where the network would notice it, with the reason.

    Args:
        draw: an operation that draws random numbers, or changes its argument.
        x: the argument.
        why: the reason in the trace.
    """
    operation = unamp.register_operation("tests::draws", rule="low")
    with unamp.trace(shadow=LOW) as trace:
        operation(draw)(x)
    operation.undo()
    (shadow,) = (record.shadow for record in trace.records if record.op == "tests::draws")
    assert shadow is not None
    assert why in shadow.left_out


def a_container_is_opened(framework: str, container: Callable[[Any, Any], Any]) -> None:
    """Check that the tensors in a container that the framework knows are cast.

    The function gets a container of the same class.

    Args:
        framework: the framework.
        container: makes a container, with attributes ``x`` and ``w``.
    """
    functions = adapter_for(framework).operations()
    given: list[Any] = []

    def product_of(pair: Any, *, nested: Any) -> Any:
        given.extend((pair, nested[0]))
        return container(functions["matmul"](pair.x, pair.w), nested[0].w)

    operation = unamp.register_operation("tests::contained", rule="low")
    x, w = functions.tensor(X), functions.tensor(W)
    pair, other = container(x, w), container(x, w)
    with unamp.trace() as trace, unamp.autocast(dtype=LOW):
        result = operation(product_of)(pair, nested=[other])
    operation.undo()
    (record,) = trace.records
    assert (record.op, record.inputs, record.compute, record.output) == (
        "tests::contained",
        ("float32",) * 4,
        LOW,
        LOW,
    )
    assert [type(each) for each in (*given, result)] == [type(pair)] * 3
    assert [functions.dtype(each) for pair in (*given, result) for each in (pair.x, pair.w)] == [
        LOW
    ] * 6
    assert functions.dtype(pair.x) == "float32"
    assert float(functions.numpy(functions["cast"](result.x, dtype="float32"))[0, 0]) == IN_LOW


def a_change_that_would_be_lost_is_refused(
    change: Callable[[Any], Any], x: Any, low: Any = None
) -> None:
    """Check that an operation that changes its argument changes it, or raises an error.

    It never changes a copy silently.

    Args:
        change: changes its argument in place.
        x: a float32 argument.
        low: a low argument, which is not cast; None where the framework emulates low.
    """
    operation = unamp.register_operation("tests::changes", rule="low")
    changing = operation(change)
    with unamp.autocast(dtype=LOW):
        with pytest.raises(
            unamp.NotExpressible, match="'tests::changes' changes an argument in place"
        ):
            changing(x)
        if low is not None:
            changing(low)
    changing(x)
    operation.undo()


def tensors_that_no_rule_reaches_are_warned_of(framework: str) -> None:
    functions = adapter_for(framework).operations()
    operation = unamp.register_operation("tests::hidden", rule="low")

    class Box:
        def __init__(self, x: Any) -> None:
            self.x = x

        @operation
        def method(self, x: Any) -> Any:
            return x

    hidden, x = operation(lambda box, x: x), functions.tensor(X)
    with warnings.catch_warnings(action="error"):
        hidden(Box(x), x)  # outside of regions nothing is warned of
        with unamp.autocast(dtype=LOW):
            Box(x).method(x)
            hidden("box", x)
    with (
        unamp.autocast(dtype=LOW),
        pytest.warns(
            unamp.AmpWarning, match=r"'tests::hidden' is called with a .*Box, and no rule"
        ),
    ):
        hidden([Box(x)], x)
    operation.undo()


def explain_tells_of_it(framework: str) -> None:
    with registered(framework, "low"):
        found = unamp.explain(unamp.Policy("O1", LOW), framework)[NAME]
    assert found.rule is unamp.Rule.LOW
    assert found.origin == "preset unamp: allow list"
    assert found.how[framework, "cpu"].value in ("intercepted", "emulated")


def it_is_undone(framework: str) -> None:
    before = product
    with registered(framework, "low"):
        assert product is not before
        policy = unamp.Policy(deny=NAME)
    assert sys.modules[__name__].product is before
    assert NAME not in unamp.vocabulary()
    with pytest.raises(ValueError, match="registered no more"), unamp.policy_region(policy):
        pass
    with pytest.raises(ValueError, match="is registered here"):
        unamp.Policy(deny=NAME)


def calling(x: Any, w: Any) -> Any:
    """Call `product`; a compiler reads or traces this function."""
    return product(x, w)


def a_compiled_function_follows(framework: str, compiled: Callable[..., Any]) -> None:
    """Check that a compiled function follows each region, and runs unchanged outside of regions."""
    with registered(framework, "low") as ops:
        calls, x, w = compiled(calling), ops.tensor(X), ops.tensor(W)
        assert ops.dtype(calls(x, w)) == "float32"
        with unamp.autocast(dtype=LOW):
            assert ops.dtype(calls(x, w)) == LOW
        with unamp.autocast(dtype=LOW, deny=NAME):
            assert ops.dtype(calls(x, w)) == "float32"


def promises(framework: str) -> list[Any]:
    """Return the promises, each bound to a framework."""
    rules = [
        pytest.param(partial(its_rule_decides, framework, *case), id=f"rule {n}")
        for n, case in enumerate(CASES)
    ]
    others: tuple[Callable[[str], None], ...] = (
        low_inputs_are_widened,
        the_function_itself_is_an_entry,
        a_decorated_function_is_one,
        gradients_flow_through_the_casts,
        a_trace_shows_it_as_one,
        tensors_that_no_rule_reaches_are_warned_of,
        explain_tells_of_it,
        it_is_undone,
        *(() if framework == "mindspore" else (a_shadow_shows_its_own_error,)),
    )
    return [*rules, *(pytest.param(partial(each, framework), id=each.__name__) for each in others)]


def test_promises(promise: Callable[[], None]) -> None:
    promise()


test_promises.promises = promises  # type: ignore[attr-defined]  # see `pytest_generate_tests` in conftest.py
