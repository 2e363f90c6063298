"""Functions with float32 results, for values that leave a region: a metric, a derivative."""

from __future__ import annotations

import functools
from typing import Any

from unamp._compiler_marks import converted_by_adapter, not_compiled, not_converted
from unamp._function_types import F, Function
from unamp._region_decorator import MARK, runs_later
from unamp.adapter import Adapter
from unamp.adapter.arguments import mapped
from unamp.adapter.framework_types import Tensor
from unamp.adapter.registry import adapters_in_use
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.errors import shortened

#: The attribute of a decorated function, for compilers that read the source behind decorators.
WIDENED = "__unamp_float32_results__"


@not_converted
def float32_results(function: F) -> F:
    """Decorate a function so that its results are float32 where they would be low.

    The function computes as the policy says. float16 and bfloat16 tensors in its result, in any
    nesting of tuples, lists and dictionaries, are cast to float32, and gradients flow through the
    cast. Write it above a region's decorator, or on a function that is called inside a region:

        @unamp.float32_results
        @unamp.autocast(dtype="bfloat16")
        def predict(x):
            return network(x)

    Args:
        function: any function or method, a coroutine function too.

    Raises:
        TypeError: for a value that is no function, and for a generator function, which returns
            nothing before it has ended.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"float32_results decorates a function, not {shortened(function)}; "
            "decorate what computes the result"
        )
    kind, name = runs_later(function), getattr(function, "__name__", shortened(function))
    if kind.endswith("generator"):
        raise TypeError(
            f"float32_results cannot decorate the generator function {name}: "
            "decorate a function that computes one of the values that it yields"
        )
    wrapper: Function
    if kind == "coroutine":

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return widened(await function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return widened(function(*args, **kwargs))

    vars(wrapper).pop(MARK, None)  # `wraps` copied it, and the inner function has that region
    setattr(wrapper, WIDENED, True)
    converted_by_adapter(wrapper)
    return not_compiled(
        f"{name} is decorated with unamp.float32_results, which MindSpore's compiler "
        "cannot run: cast in its body (`.astype(mindspore.float32)`), "
        "or decorate the function that calls what is compiled"
    )(wrapper)  # type: ignore[return-value]


@not_converted
def widened(result: object) -> object:
    """Return a result with its low tensors in float32."""
    for adapter in adapters_in_use():
        result = mapped(result, adapter.is_tensor, functools.partial(_float32, adapter))
    return result


def _float32(adapter: Adapter, tensor: Tensor) -> Tensor:
    return adapter.cast(tensor, FLOAT32) if adapter.dtype_of(tensor) in LOW_DTYPES else tensor
