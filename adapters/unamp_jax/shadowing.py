"""Products of matrices from float8, for `unamp.trace(shadow=...)` and the study of `unamp.tune`.

Every function and layer that multiplies matrices calls `jax.lax.dot_general`, whose arguments say
along which axes it sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from unamp._function_types import Function
from unamp.adapter.float8 import GRADIENTS, Arithmetic, Format, dequantized, format_of
from unamp.adapter.replacing import as_replacement
from unamp.adapter.shadowing import LeftOut
from unamp_jax.casting import cast
from unamp_jax.state import FLOAT32


class _Asked:
    """A request to compute a product from float8.

    Attributes:
        products: the number of products that it met.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.products = 0


class _Thread(threading.local):
    asked: _Asked | None = None


_thread = _Thread()


@contextmanager
def products_in_float8(dtype: str) -> Iterator[None]:
    """Compute the product of an operation that runs inside from float8.

    Raises:
        LeftOut: where it was no product, or several.
    """
    before, asked = _thread.asked, _Asked(dtype)
    _thread.asked = asked
    try:
        yield
    finally:
        _thread.asked = before
    if asked.products != 1:
        raise LeftOut(f"it comes to {asked.products} products of two; float8 is for one")


@as_replacement
def dot_general(
    original: Function,
    /,
    lhs: jax.typing.ArrayLike,
    rhs: jax.typing.ArrayLike,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    *args: Any,
    **kwargs: Any,
) -> jax.Array:
    """Wrap `jax.lax.dot_general` so that it computes from float8 where that is asked for.

    The product and its backward pass are computed in float32. The backward pass takes the gradient
    of the result as float8_e5m2 holds it, and the factors as they were here.
    """
    asked = _thread.asked
    if asked is None:
        return original(lhs, rhs, dimension_numbers, *args, **kwargs)
    asked.products += 1
    form, by_rows = format_of(asked.dtype)
    summed = dimension_numbers[0]
    if by_rows and not all(map(len, summed)):
        raise LeftOut("it does not sum over an axis of each of the two, so that rows have no scale")
    left, right = (tuple(map(int, axes)) if by_rows else None for axes in summed)
    _thread.asked = None  # rules of transformations call this function, too
    try:
        factors = _held(cast(lhs, FLOAT32), form, left), _held(cast(rhs, FLOAT32), form, right)
        return _gradient_held(original(*factors, dimension_numbers, *args, **kwargs))
    finally:
        _thread.asked = asked


def _amax(tensor: jax.Array, axes: Sequence[int] | None) -> jax.Array:
    return jnp.max(tensor, axis=None if axes is None else tuple(axes), keepdims=True)


#: The operations by which float8 is emulated.
ARITHMETIC = Arithmetic(jnp.where, _amax)


def _dequantized(tensor: jax.Array, form: Format, axes: tuple[int, ...] | None) -> jax.Array:
    return dequantized(tensor, form, axes, ARITHMETIC)


def _same(result: jax.Array) -> jax.Array:
    return result


#: A tensor as float8 holds it; its gradient passes as it is.
_held = jax.custom_vjp(_dequantized, nondiff_argnums=(1, 2))
_held.defvjp(
    lambda tensor, form, axes: (_dequantized(tensor, form, axes), None),
    lambda form, axes, kept, gradient: (gradient,),
)

#: A result as it is; its gradient passes as float8 holds it.
_gradient_held = jax.custom_vjp(_same)
_gradient_held.defvjp(
    lambda result: (result, None), lambda kept, gradient: (_dequantized(gradient, GRADIENTS, None),)
)
