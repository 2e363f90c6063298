"""`float32_results` widens the low tensors in a function's results, on fake tensors."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from typing import Any

import pytest

import unamp


class Named(OrderedDict[str, Any]):
    """A subclass of dict, as networks return."""


def test_low_tensors_of_any_nesting_become_float32_and_nothing_else_does(
    fake: Any, tensor: Any
) -> None:
    kept = tensor("float64"), tensor("int64"), tensor("float32")

    @unamp.float32_results
    def f() -> Any:
        return Named(a=tensor("bfloat16"), b=[tensor("float16"), kept], c="text")

    result = f()
    assert type(result) is Named
    assert (result["a"].dtype, result["b"][0].dtype, result["c"]) == ("float32", "float32", "text")
    assert all(one is other for one, other in zip(result["b"][1], kept, strict=True))
    assert f.__name__ == "f"


def test_around_a_region_and_inside_one(fake: Any, tensor: Any) -> None:
    seen = []

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def f() -> Any:
        seen.append(unamp.get_autocast_dtype())
        return tensor("bfloat16")

    assert f().dtype == "float32"
    with unamp.autocast(dtype="float16"):
        assert f().dtype == "float32"
    assert seen == ["bfloat16", "bfloat16"]


def test_methods_and_coroutines(fake: Any, tensor: Any) -> None:
    class Model:
        @unamp.float32_results
        def call(self) -> Any:
            return tensor("float16")

        @unamp.float32_results
        async def later(self) -> Any:
            return tensor("float16")

    assert Model().call().dtype == "float32"
    assert asyncio.run(Model().later()).dtype == "float32"


@pytest.mark.parametrize("given", [3, "f", dict])
def test_what_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="decorates a function, not"):
        unamp.float32_results(given)


def test_a_generator_function_is_refused() -> None:
    def steps() -> Any:
        yield 1

    with pytest.raises(TypeError, match="cannot decorate the generator function steps"):
        unamp.float32_results(steps)
    with pytest.raises(
        TypeError, match=r"cannot decorate the generator function functools\.partial"
    ):
        unamp.float32_results(functools.partial(steps))


def test_an_object_whose_class_computes_later(fake: Any, tensor: Any) -> None:
    class Later:
        async def __call__(self) -> Any:
            return tensor("float16")

    assert asyncio.run(unamp.float32_results(Later())()).dtype == "float32"
