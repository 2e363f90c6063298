"""The promises of `unamp.register_operation`, on every framework. Each framework's folder asks them.

1 + 2^-9 is a number of float32 and none of bfloat16, and neither is a sum of eight of them: so the numbers tell in which
precision an operation computed, to the bit.
"""

from __future__ import annotations

import sys
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

#: The framework's functions for `product`, which is one function for all of them, as a library's are.
functions: Operations | None = None


def product(x: Any, w: Any) -> Any:
    """Return a product and a sum that changes nothing: two operations, one of them on the allow list."""
    assert functions is not None
    return functions["add"](functions["matmul"](x, w), functions["zeros_like"](functions["matmul"](x, w)))


@contextmanager
def registered(framework: str, rule: Any) -> Iterator[Operations]:
    """Have `product` be an operation."""
    global functions
    functions = adapter_for(framework).operations()
    registration = unamp.register_operation(NAME, product, rule=rule)
    try:
        yield functions
    finally:
        registration.undo()


def call(ops: Operations, dtype: str = "float32") -> tuple[str, float]:
    """Return the dtype of what it returns, and one of its numbers."""
    x, w = (ops["cast"](ops.tensor(each), dtype=dtype) for each in (X, W))
    result = product(x, w)
    return ops.dtype(result), float(ops.numpy(ops["cast"](result, dtype="float32"))[0, 0])


#: Arguments of a region, the rule that an operation was registered with, and what comes out.
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
    ({"deny": "matmul"}, "low", (LOW, IN_LOW)),  # what it is made of follows no rule
    ({"dtype": "float32"}, "low", ("float32", IN_FLOAT32)),
    ({"enabled": False}, "low", ("float32", IN_FLOAT32)),
)


def its_rule_decides(framework: str, arguments: dict[str, Any], rule: str, expected: tuple[str, float]) -> None:
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
            assert ops.dtype(decorated(x, w)) == LOW  # what it is made of follows its rules again
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
    np.testing.assert_array_equal(ops.numpy(dw), np.full((8, 2), 2, np.float32))  # of inputs that were rounded


def a_trace_shows_it_as_one(framework: str) -> None:
    with registered(framework, "low") as ops, unamp.trace() as trace, unamp.autocast(dtype=LOW):
        product(ops.tensor(X), ops.tensor(W))
    (record,) = (each for each in trace.records if each.op == NAME)
    assert record.rule is unamp.Rule.LOW
    assert (record.inputs, record.compute, record.output) == (("float32", "float32"), LOW, LOW)
    assert (record.input_shapes, record.output_shape) == (((2, 8), (8, 2)), (2, 2))
    assert (record.framework, record.native) == (framework, "product")
    assert not [each for each in trace.records if each.op == "matmul"]


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
    """Call `product`, for a compiler to read or trace."""
    return product(x, w)


def a_compiled_function_follows(framework: str, compiled: Callable[..., Any]) -> None:
    """What a framework's compiler made of a function is another program in each region, and the plain one outside."""
    with registered(framework, "low") as ops:
        calls, x, w = compiled(calling), ops.tensor(X), ops.tensor(W)
        assert ops.dtype(calls(x, w)) == "float32"
        with unamp.autocast(dtype=LOW):
            assert ops.dtype(calls(x, w)) == LOW
        with unamp.autocast(dtype=LOW, deny=NAME):
            assert ops.dtype(calls(x, w)) == "float32"


def promises(framework: str) -> list[Any]:
    """Return the promises, each ready to be asked of a framework."""
    rules = [pytest.param(partial(its_rule_decides, framework, *case), id=f"rule {n}") for n, case in enumerate(CASES)]
    others: tuple[Callable[[str], None], ...] = (
        low_inputs_are_widened,
        the_function_itself_is_an_entry,
        a_decorated_function_is_one,
        gradients_flow_through_the_casts,
        a_trace_shows_it_as_one,
        explain_tells_of_it,
        it_is_undone,
    )
    return [*rules, *(pytest.param(partial(each, framework), id=each.__name__) for each in others)]
