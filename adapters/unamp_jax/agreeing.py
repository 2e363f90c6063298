"""Places where JAX, and libraries on it, want two dtypes to be one, and a region may have made one of them low."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from unamp_jax.casting import Form, cast, form_of, in_form
from unamp_jax.control_flow import ending, widest, wrapped
from unamp_jax.state import CONTEXT, ELIGIBLE

__all__ = [
    "converted_closure", "linear_transpose", "older_pullback", "pullback", "reduction", "scatter_update", "state_set",
    "unraveled",
]  # fmt: skip

Function = Callable[..., Any]


def reduction(original: Function) -> Function:
    """Return the replacement of `jax.lax.reduce` and `reduce_window`: operands have the dtypes of their first values."""

    def call(operands: Any, init_values: Any, computation: Any, *args: Any, **kwargs: Any) -> Any:
        if CONTEXT.value is not None and jax.tree.structure(operands) == jax.tree.structure(init_values):
            values, first = form_of(operands), form_of(init_values)
            wide = Form(values.structure, tuple(map(widest, values.dtypes, first.dtypes)))
            operands, init_values = in_form(operands, wide), in_form(init_values, wide)
            if not _is_jaxs(computation):
                computation = wrapped(computation, ending, wide)
        return original(operands, init_values, computation, *args, **kwargs)

    return call


def _is_jaxs(computation: Any) -> bool:
    """Return whether JAX knows a reduction by its function, `jax.lax.add` say, and has an operation of its own for it."""
    return str(getattr(computation, "__module__", "")).startswith("jax.")


def scatter_update(original: Function) -> Function:
    """Return the replacement of the function under ``x.at[...]``: the stored value takes the dtype of the array."""

    def call(x: Any, idx: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if CONTEXT.value is not None and dtype in ELIGIBLE:
            with CONTEXT(None):
                y = cast(y, dtype)
        return original(x, idx, y, *args, **kwargs)

    return call


def pullback(original: Function) -> Function:
    """Return the replacement of the call of a `jax.vjp` pullback: cotangents take the dtypes of the results."""

    def call(self: Any, out_ct: Any, *extra_args: Any) -> Any:
        if CONTEXT.value is not None:
            dtypes = tuple(aval.dtype for aval in self.fun.args[-1])
            if len(dtypes) == self.out_tree.num_leaves:
                out_ct = in_form(out_ct, Form(self.out_tree, dtypes))
        return original(self, out_ct, *extra_args)

    return call


def older_pullback(original: Function) -> Function:
    """Return the replacement of the function under a `jax.vjp` pullback of JAX 0.8, as `pullback`."""

    def call(name: Any, out_avals: Any, trees: Any, fun: Any, *cotangents: Any) -> Any:
        if CONTEXT.value is not None and len(cotangents) == 1:
            cotangents = (in_form(cotangents[0], Form(trees[0], tuple(aval.dtype for aval in out_avals))),)
        return original(name, out_avals, trees, fun, *cotangents)

    return call


def linear_transpose(original: Function) -> Function:
    """Return the replacement of `jax.linear_transpose`: cotangents take the dtypes of the function's results."""

    def call(fun: Any, *primals: Any, **kwargs: Any) -> Any:
        transposed = original(fun, *primals, **kwargs)
        if CONTEXT.value is None:
            return transposed
        form = form_of(jax.eval_shape(fun, *primals))
        return jax.tree_util.Partial(functools.partial(_transposed, form), transposed)

    return call


def _transposed(form: Form, function: Function, cotangents: Any) -> Any:
    return function(in_form(cotangents, form))


def unraveled(original: Function) -> Function:
    """Return the replacement of the inverse of `jax.flatten_util.ravel_pytree`: the array takes its first dtype."""

    def call(sizes: Any, shapes: Any, from_dtypes: Any, to_dtype: Any, arr: Any) -> Any:
        if CONTEXT.value is not None and to_dtype in ELIGIBLE:
            with CONTEXT(None):
                arr = cast(arr, to_dtype)
        return original(sizes, shapes, from_dtypes, to_dtype, arr)

    return call


def converted_closure(original: Function) -> Function:
    """Return the replacement of the call of a function that `equinox.filter_closure_convert` returned."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if CONTEXT.value is not None:
            args, kwargs = in_form((args, kwargs), form_of(self.in_struct))
        return original(self, *args, **kwargs)

    return call


def state_set(original: Function) -> Function:
    """Return the replacement of `equinox.nn.State.set`: a value takes the dtypes of the one before."""

    def call(self: Any, item: Any, value: Any) -> Any:
        if CONTEXT.value is not None:
            value = in_form(value, form_of(self.get(item)))
        return original(self, item, value)

    return call
