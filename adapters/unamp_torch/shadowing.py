"""Computing a reported operation a second time, low, for `unamp.trace(shadow=...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from unamp._function_types import Keywords
from unamp.adapter import registered, shadowing
from unamp.adapter.arguments import mapped
from unamp.adapter.float8 import (
    GRADIENTS,
    Arithmetic,
    Format,
    contracted,
    dequantized,
    format_of,
    with_factors,
)
from unamp.adapter.observing import equation
from unamp.adapter.records import OpRecord, Shadow
from unamp.adapter.shadowing import DRAWS, IN_PLACE, NAMED, LeftOut
from unamp.dtypes import FLOAT8
from unamp_torch.listing import Action, Operator
from unamp_torch.numbers import flat, floating, has_numbers, row
from unamp_torch.state import DTYPES

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

R = TypeVar("R")

_keys_of = torch._C._dispatch_keys  # of a tensor
_PYTHON = torch._C.DispatchKey.Python


class SecondRun:
    """The second run of one operation.

    The object is made before the first run, so that it sees whether that draws random numbers.

    Args:
        operator: the operator that is called.
        dtype: the low dtype's name.
        low: carries out the rule LOW.
        args, kwargs: the call's arguments.
    """

    def __init__(
        self, operator: Operator, dtype: str, low: Action, args: Sequence[object], kwargs: Keywords
    ) -> None:
        self._operator, self._args, self._kwargs = operator, args, kwargs
        self._dtype, self._low = dtype, low
        self._run_apart = _apart(flat((args, *kwargs.values())))

    def beside(self, record: OpRecord, result: object) -> Shadow:
        """Return the error of the second run's result, against the first run's."""
        return shadowing.shadow(
            self._dtype, record, lambda: list(map(row, floating(result))), lambda: self._run(result)
        )

    def _run(self, result: object) -> list[torch.Tensor]:
        operator, args, kwargs = self._operator, self._args, self._kwargs
        if operator.keeps_explicit_dtype(args, kwargs):
            raise LeftOut(NAMED)
        if operator.has_sparse_gradient(args, kwargs):
            raise LeftOut("its gradients are sparse, which no rule casts")
        check_seen(flat((args, *kwargs.values(), result)))
        if any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
            raise LeftOut(DRAWS)
        return list(map(row, floating(self._run_apart(self._run_low))))

    def _run_low(self) -> object:
        operator, dtype = self._operator, torch.float32
        if self._dtype in FLOAT8:
            operator = operator.calling(partial(product_in_float8, operator, self._dtype))
        else:
            dtype = DTYPES[self._dtype]
        return self._low(operator, *self._copies(), dtype)

    def _copies(self) -> tuple[list[object], Keywords]:
        """Return the arguments with copies of the tensors that are not cast.

        The run would change running statistics in place.
        """
        eligible = self._operator.eligible
        copied = partial(mapped, is_tensor=torch.is_tensor, change=torch.clone)
        args = [
            value if i in eligible.positions else copied(value)
            for i, value in enumerate(self._args)
        ]
        return args, {
            k: value if k in eligible.keywords else copied(value)
            for k, value in self._kwargs.items()
        }


def _apart(tensors: Iterable[torch.Tensor]) -> Callable[[Callable[[], R]], R]:
    """Return the function that runs an operation again, without gradients.

    It is made before the first run, from the tensors that go in. It raises LeftOut where the first
    run drew random numbers, and leaves the generators as the first run did.
    """
    generators = list(_generators(tensors))
    before = [generator.get_state() for generator in generators]

    def run(call: Callable[[], R]) -> R:
        after = [generator.get_state() for generator in generators]
        if not all(map(torch.equal, before, after)):
            raise LeftOut(DRAWS)
        try:
            with torch.no_grad():
                return call()
        finally:
            for generator, state in zip(generators, after, strict=True):
                generator.set_state(state)

    return run


@contextmanager
def second_run(tensors: Sequence[torch.Tensor]) -> Iterator[registered.SecondRun]:
    """Watch a registered operation, and yield the function that runs it again.

    See `unamp.adapter.registered`.
    """
    run_apart, same = _apart(tensors), [unchanged(tensor) for tensor in tensors]

    def run(call: Callable[[], R]) -> R:
        check_seen(tensors)
        if not all(is_same() for is_same in same):
            raise LeftOut(IN_PLACE)
        return run_apart(call)

    yield run


def unchanged(value: object) -> Callable[[], bool]:
    """Return the function that tells whether a tensor is unchanged.

    PyTorch counts the changes of a tensor, except of inference tensors.
    """
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return lambda: True
    version = value._version
    return lambda: value._version == version


def check_seen(tensors: Iterable[torch.Tensor]) -> None:
    """Raise LeftOut where something would record a second run, or tensors have no numbers."""
    if (watching := torch._C._get_tracing_state() or _get_current_dispatch_mode()) is not None:
        raise LeftOut(f"{type(watching).__name__} would see it run twice")
    for tensor in tensors:
        if not has_numbers(tensor) or _keys_of(tensor).has(_PYTHON):
            raise LeftOut(
                "it has a tensor without plain numbers "
                "(sparse, nested, without data, transformed, a subclass)"
            )


def product_in_float8(operator: Operator, dtype: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call a product with its two factors as float8 holds them.

    The product and its backward pass are computed in float32. The backward pass takes the gradient
    of the result as float8_e5m2 holds it, and the factors as they were here; an addend, such as a
    bias, gets the gradient as it is.

    Raises:
        LeftOut: where the operation does not multiply two tensors, or by rows sums over nothing.
    """
    form, by_rows = format_of(dtype)
    axes: Sequence[Sequence[int] | None] = _summed(operator.op, args) if by_rows else (None, None)
    held: Callable[..., torch.Tensor] = _Held.apply
    followed: Callable[..., torch.Tensor] = _GradientHeld.apply
    converted = with_factors(
        operator.op, args, lambda n, tensor: held(tensor.float(), form, axes[n])
    )
    added = _ADDED.get(operator.op)
    if added is None or added >= len(converted) or converted[added] is None:
        return followed(operator.call(*converted, **kwargs))
    addend = converted[added]
    converted[added] = addend.detach()
    result = followed(operator.call(*converted, **kwargs))
    return (
        result + (addend - addend.detach()) * kwargs.get("beta", 1)
        if addend.requires_grad
        else result
    )


#: The positions of the addend among a product's arguments.
_ADDED = {"addbmm": 0, "addmm": 0, "addmv": 0, "baddbmm": 0, "linear": 2}


class _Held(torch.autograd.Function):
    """A tensor as float8 holds it; its gradient passes as it is."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, tensor: torch.Tensor, form: Format, axes: Sequence[int] | None
    ) -> torch.Tensor:
        """Return the tensor as float8 holds it."""
        held: torch.Tensor = dequantized(tensor, form, axes, _ARITHMETIC)
        return held

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient."""
        return *gradients, None, None


class _GradientHeld(torch.autograd.Function):
    """A result as it is; its gradient passes as float8 holds it."""

    @staticmethod
    def forward(ctx: FunctionCtx, result: torch.Tensor) -> torch.Tensor:
        """Return the result."""
        return result.view_as(result)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> Any:
        """Return the gradient as float8 holds it."""
        return dequantized(gradients[0], GRADIENTS, None, _ARITHMETIC)


def _summed(op: str, args: Sequence[object]) -> Sequence[Sequence[int]]:
    """Return the axes of both factors that a product sums over."""
    pair: list[torch.Tensor] = []
    with_factors(op, args, lambda n, tensor: pair.append(tensor))
    if op == "einsum":
        return contracted(equation(op, args) or "", [each.dim() for each in pair])
    return [(-1,), (-1,) if op == "linear" or pair[1].dim() == 1 else (-2,)]


def _amax(tensor: torch.Tensor, axes: Sequence[int] | None) -> torch.Tensor:
    return torch.amax(
        tensor, tuple(range(tensor.dim())) if axes is None else tuple(axes), keepdim=True
    )


_ARITHMETIC = Arithmetic(torch.where, _amax)


def _generators(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Generator]:
    """Yield the random number generators of the CPU, and of the GPUs that hold the tensors."""
    yield torch.default_generator
    for index in sorted({tensor.device.index for tensor in tensors if tensor.is_cuda}):
        yield torch.cuda.default_generators[index]
