"""Loops and branches: what a loop carries keeps its dtype, and branches agree in theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from unamp_jax.casting import cast
from unamp_jax.state import CONTEXT, ELIGIBLE, FLOAT32

__all__ = ["cond", "scan", "switch", "while_loop"]

Function = Callable[..., Any]


def _like(value: Any, model: Any) -> Any:
    """Return a pytree with the dtypes of another one; one of another structure, which JAX will refuse, as it is."""
    if jax.tree.structure(value) != jax.tree.structure(model):
        return value

    def to(leaf: Any, other: Any) -> Any:
        dtype = getattr(other, "dtype", None)
        return cast(leaf, dtype) if dtype in ELIGIBLE else leaf

    with CONTEXT(None):
        return jax.tree.map(to, value, model)


def scan(original: Function) -> Function:
    """Return what stands in for `jax.lax.scan`."""

    def call(f: Any, init: Any, xs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if CONTEXT.value is None:
            return original(f, init, xs, *args, **kwargs)

        def body(carry: Any, x: Any) -> Any:
            result = f(carry, x)
            if isinstance(result, tuple) and len(result) == 2:
                return _like(result[0], carry), result[1]
            return result

        return original(body, init, xs, *args, **kwargs)

    return call


def while_loop(original: Function) -> Function:
    """Return what stands in for `jax.lax.while_loop`, which `fori_loop` comes to."""

    def call(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
        if CONTEXT.value is None:
            return original(cond_fun, body_fun, init_val)
        return original(cond_fun, lambda value: _like(body_fun(value), value), init_val)

    return call


def cond(original: Function) -> Function:
    """Return what stands in for `jax.lax.cond`."""

    def call(pred: Any, true_fun: Any, false_fun: Any, *operands: Any, **named: Any) -> Any:
        if CONTEXT.value is None or not (callable(true_fun) and callable(false_fun)):  # not the form of old
            return original(pred, true_fun, false_fun, *operands, **named)
        made = _agreeing((true_fun, false_fun), _operands(operands, named))
        return original(pred, *made, *operands, **named)

    return call


def switch(original: Function) -> Function:
    """Return what stands in for `jax.lax.switch`."""

    def call(index: Any, branches: Any, *operands: Any, **named: Any) -> Any:
        if CONTEXT.value is None:
            return original(index, branches, *operands, **named)
        return original(index, _agreeing(tuple(branches), _operands(operands, named)), *operands, **named)

    return call


def _operands(operands: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    given = [value for value in named.values() if type(value) is not object]  # what stands for "none given"
    return operands or tuple(given)


def _agreeing(branches: tuple[Function, ...], operands: tuple[Any, ...]) -> tuple[Function, ...]:
    """Return branches whose results are float32 where theirs would differ."""
    shapes = [jax.eval_shape(branch, *operands) for branch in branches]
    if len({jax.tree.structure(shape) for shape in shapes}) > 1:
        return branches  # JAX says what is wrong
    wide = jax.tree.map(_widest, *shapes)
    if all(
        a.dtype == dtype for shape in shapes for a, dtype in zip(jax.tree.leaves(shape), jax.tree.leaves(wide), strict=True)
    ):
        return branches
    return tuple(_ending_in(branch, wide) for branch in branches)


def _widest(*shapes: Any) -> Any:
    dtypes = {shape.dtype for shape in shapes}
    return FLOAT32 if len(dtypes) > 1 and dtypes <= ELIGIBLE else shapes[0].dtype


def _ending_in(branch: Function, dtypes: Any) -> Function:
    def run(*operands: Any) -> Any:
        result = branch(*operands)
        with CONTEXT(None):
            return jax.tree.map(lambda leaf, dtype: cast(leaf, dtype) if dtype in ELIGIBLE else leaf, result, dtypes)

    return run
