"""Functions with rules of differentiation of their own: `jax.custom_jvp` and `jax.custom_vjp`.

Such a rule runs under the policy of its forward pass, also after the region has closed. Its results
get the dtypes that JAX demands: tangents those of their primals, cotangents those of the inputs.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from unamp._function_types import Function, Keywords
from unamp.adapter.replacing import as_replacement
from unamp_jax.casting import Form, cast, eligible_dtype, form_of, in_form
from unamp_jax.composites import Composite
from unamp_jax.state import CONTEXT, ELIGIBLE, Plan, PyTree

Patched = Callable[[], AbstractContextManager[None]]


def jvp_call(
    composites: Mapping[int, Composite], patched: Patched
) -> Callable[[Function], Function]:
    """Return the maker of the replacement of `custom_jvp.__call__`.

    Args:
        composites: the functions with such rules that are operations of the vocabulary, by ids.
        patched: applies the patches while the context is open: a rule may run after the last
            region is closed.
    """

    def ruled(
        plan: Plan, function: jax.custom_jvp, args: tuple[PyTree, ...], kwargs: Keywords
    ) -> jax.custom_jvp:
        if not function.jvp:
            return function
        mine = copy.copy(function)  # others call the function itself, under other policies
        primal = _Primal()
        mine.fun = primal.of_function(function.fun)
        mine.jvp = _under(
            plan, function.jvp, lambda result: _tangents(primal.of_rule(result)), patched
        )
        return mine

    return _calling(composites, ruled)


def vjp_call(
    composites: Mapping[int, Composite], patched: Patched
) -> Callable[[Function], Function]:
    """Return the maker of the replacement of `custom_vjp.__call__`; arguments as for `jvp_call`."""

    def ruled(
        plan: Plan, function: jax.custom_vjp, args: tuple[PyTree, ...], kwargs: Keywords
    ) -> jax.custom_vjp:
        if not function.fwd:
            return function
        mine = object.__new__(type(function))  # its `__new__` wants the function
        mine.__dict__.update(function.__dict__)
        primal = _Primal()
        mine.fun = primal.of_function(function.fun)
        if function.optimize_remat:  # then JAX may trace it as late as a rule
            mine.fun = _under(plan, mine.fun, lambda result: result, patched)
        mine.fwd = _under(plan, function.fwd, primal.of_rule, patched)
        mine.bwd = _under(
            plan, function.bwd, _cotangents(_primals(function, args, kwargs)), patched
        )
        return mine

    return _calling(composites, ruled)


class _Primal:
    """The dtypes of the result of one call, which JAX wants of the function and of its rule.

    They may compute the same in other operations, whose dtypes differ in a region. The first of
    them that runs decides.
    """

    def __init__(self) -> None:
        self._form: Form | None = None

    def of_function(self, function: Function) -> Function:
        """Return the function with results in these dtypes."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> PyTree:
            return self._agreeing(function(*args, **kwargs))

        return run

    def of_rule(self, result: PyTree) -> PyTree:
        """Return a rule's result with the first of its two parts in these dtypes."""
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            return result  # JAX says what is wrong
        return self._agreeing(result[0]), result[1]

    def _agreeing(self, result: PyTree) -> PyTree:
        if self._form is None:
            self._form = form_of(result)
            return result
        return in_form(result, self._form)


def _calling(
    composites: Mapping[int, Composite], ruled: Function
) -> Callable[[Function], Function]:
    """Return the maker of a replacement of `__call__`.

    `ruled` returns a copy of the function whose rules run under the plan.
    """

    @as_replacement
    def call(
        original: Function, self: jax.custom_jvp | jax.custom_vjp, /, *args: Any, **kwargs: Any
    ) -> PyTree:
        plan: Plan | None = CONTEXT.value
        if plan is None:
            return original(self, *args, **kwargs)
        if (composite := composites.get(id(self))) is not None:
            return composite(*args, **kwargs)
        return original(ruled(plan, self, args, kwargs), *args, **kwargs)

    return call


def _under(plan: Plan, function: Function, finish: Function, patched: Patched) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with patched():
            with CONTEXT(plan):
                result = function(*args, **kwargs)
            with CONTEXT(None):
                return finish(result)

    return run


def _tangents(result: Sequence[PyTree]) -> Sequence[PyTree]:
    primal, tangent = result

    def like(value: object, other: object) -> object:
        dtype = eligible_dtype(value)
        return other if dtype is None else cast(other, dtype)

    if jax.tree.structure(primal) != jax.tree.structure(tangent):
        return result
    return primal, jax.tree.map(like, primal, tangent)


def _primals(self: jax.custom_vjp, args: tuple[PyTree, ...], kwargs: Keywords) -> list[PyTree]:
    """Return shapes and dtypes of the arguments that get cotangents."""
    given = inspect.signature(self.fun).bind(*args, **kwargs)
    given.apply_defaults()
    primals = [value for n, value in enumerate(given.args) if n not in self.nondiff_argnums]

    def shape(leaf: object) -> object:
        is_numeric = isinstance(leaf, (int, float, complex)) or hasattr(leaf, "dtype")
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) if is_numeric else leaf

    return [jax.tree.map(shape, value) for value in primals]


def _cotangents(primals: list[PyTree]) -> Function:
    def finish(cotangents: PyTree) -> PyTree:
        if not isinstance(cotangents, (tuple, list)) or len(cotangents) != len(primals):
            return cotangents
        return type(cotangents)(
            _like(each, primal) for each, primal in zip(cotangents, primals, strict=True)
        )

    return finish


def _like(cotangent: PyTree, primal: PyTree) -> PyTree:
    if cotangent is None or jax.tree.structure(cotangent) != jax.tree.structure(primal):
        return cotangent

    def to(leaf: object, other: object) -> object:
        dtype = getattr(other, "dtype", None)
        return cast(leaf, dtype) if dtype in ELIGIBLE else leaf

    return jax.tree.map(to, cotangent, primal)
