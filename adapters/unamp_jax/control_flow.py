"""Loops, branches and solvers: a loop's values keep their dtypes, and branches agree in theirs.

JAX refuses a body that returns other dtypes than it was given. So a body is wrapped, and the
wrapped body is kept for as long as the body lives: JAX finds traced and compiled programs by
their function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jax._src.util import weakref_lru_cache

from unamp._function_types import Function
from unamp.adapter.state import in_regions
from unamp_jax.casting import Form, form_of, in_form
from unamp_jax.state import ELIGIBLE, FLOAT32, PyTree, thread

#: Gives a function, which it may hold weakly.
Reference = Callable[[], Any]


# --- wrapped bodies -------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """The wrapped forms of one function."""

    function: Reference
    wrapped: dict[tuple[object, ...], Function]


_kept: weakref.WeakKeyDictionary[Function, _Kept] = weakref.WeakKeyDictionary()


def wrapped(function: Function, wrap: Callable[..., Function], *details: Hashable) -> Function:
    """Return a function wrapped, the same one each time for as long as the function lives.

    Args:
        wrap: wraps the function, given a reference to it, and the details.
        *details: hashable.
    """
    try:
        kept = _kept.get(function)
        if kept is None or kept.function() is not function:  # kept for another, equal one
            kept = _kept[function] = _Kept(weakref.ref(function), {})
    except TypeError:  # it cannot be hashed, or referred to weakly
        return wrap(lambda: function, *details)
    key = (wrap, *details)
    if key not in kept.wrapped:
        kept.wrapped[key] = wrap(kept.function, *details)
    return kept.wrapped[key]


def _scan_body(function: Reference) -> Function:
    def body(carry: PyTree, x: PyTree) -> PyTree:
        form = form_of(carry)
        result = function()(carry, x)
        if isinstance(result, tuple) and len(result) == 2:
            return in_form(result[0], form), result[1]
        return result

    return body


def _while_body(function: Reference) -> Function:
    def body(value: PyTree) -> PyTree:
        form = form_of(value)
        return in_form(function()(value), form)

    return body


def ending(function: Reference, form: Form) -> Function:
    """Return a function whose result has the dtypes of a form."""

    def run(*operands: PyTree) -> PyTree:
        return in_form(function()(*operands), form)

    return run


# --- loops and branches ---------------------------------------------------------------------------

# Each decorated function is called with the original, which it replaces, and its arguments.
_in_regions = in_regions(thread)


@_in_regions
def scan(original: Function, f: Function, *args: Any, **kwargs: Any) -> PyTree:
    """Call `jax.lax.scan`, or equinox's, with a body that keeps the dtypes of its carry."""
    return original(wrapped(f, _scan_body) if callable(f) else f, *args, **kwargs)


@_in_regions
def while_loop(
    original: Function, cond_fun: Function, body_fun: Function, *args: Any, **kwargs: Any
) -> PyTree:
    """Call `jax.lax.while_loop`, or equinox's, with a body that keeps the dtypes of its value.

    `jax.lax.fori_loop` calls it, too.
    """
    return original(
        cond_fun,
        wrapped(body_fun, _while_body) if callable(body_fun) else body_fun,
        *args,
        **kwargs,
    )


@_in_regions
def cond(
    original: Function,
    pred: jax.typing.ArrayLike,
    true_fun: object,
    false_fun: object,
    *operands: PyTree,
    **named: PyTree,
) -> PyTree:
    """Call `jax.lax.cond` with branches whose results agree in their dtypes."""
    if callable(true_fun) and callable(false_fun):  # else the call has the older form
        true_fun, false_fun = _agreeing((true_fun, false_fun), _operands(operands, named))
    return original(pred, true_fun, false_fun, *operands, **named)


@_in_regions
def switch(
    original: Function,
    index: jax.typing.ArrayLike,
    branches: Sequence[Function],
    *operands: PyTree,
    **named: PyTree,
) -> PyTree:
    """Call `jax.lax.switch` with branches whose results agree in their dtypes."""
    return original(
        index, _agreeing(tuple(branches), _operands(operands, named)), *operands, **named
    )


@_in_regions
def switch_of_platforms(
    original: Function,
    index: object,
    branches: Sequence[Function],
    operands: tuple[PyTree, ...],
    *args: Any,
    branches_platforms: object = None,
) -> PyTree:
    """Call the function under `jax.lax.platform_dependent` so that its branches agree."""
    if branches_platforms is not None:
        branches = _agreeing(tuple(branches), operands)
    return original(index, branches, operands, *args, branches_platforms=branches_platforms)


def _operands(operands: tuple[PyTree, ...], named: dict[str, PyTree]) -> tuple[PyTree, ...]:
    # a plain object means "none given"
    given = [value for value in named.values() if type(value) is not object]
    return operands or tuple(given)


def _agreeing(branches: tuple[Function, ...], operands: tuple[PyTree, ...]) -> tuple[Function, ...]:
    """Return the branches, wrapped so that results are float32 where their dtypes differ."""
    forms = [_result_form(branch, operands) for branch in branches]
    if len({form.structure for form in forms}) > 1 or len(set(forms)) == 1:
        return branches  # JAX says what is wrong, or nothing is
    wide = Form(forms[0].structure, tuple(map(widest, *(form.dtypes for form in forms))))
    return tuple(wrapped(branch, ending, wide) for branch in branches)


def _result_form(branch: Function, operands: tuple[PyTree, ...]) -> Form:
    """Return the form of a branch's result.

    A branch is traced once for operands of the same kinds, as by JAX itself.
    """
    leaves, structure = jax.tree.flatten(operands)
    kinds = tuple(map(jax.typeof, leaves))
    if all(type(kind) is jax.core.ShapedArray for kind in kinds):
        # a reference is more than a shape and a dtype
        try:
            known: Form = _remembered_form(branch, structure, kinds)
            return known
        except TypeError:
            pass  # the branch cannot be remembered, or is wrong in itself: then it raises again
    return form_of(jax.eval_shape(branch, *operands))


@weakref_lru_cache  # type: ignore[untyped-decorator]
def _remembered_form(
    branch: Function, structure: jax.tree_util.PyTreeDef, kinds: tuple[jax.core.ShapedArray, ...]
) -> Form:
    """Return the form of a branch's result.

    The policy in force is a part of the key, as of all of JAX's caches of traces.
    """
    return form_of(jax.eval_shape(branch, *structure.unflatten(kinds)))


def widest(*dtypes: object) -> object:
    """Return float32 where eligible dtypes differ, else the first of them."""
    return FLOAT32 if len(set(dtypes)) > 1 and ELIGIBLE.issuperset(dtypes) else dtypes[0]


# --- solvers --------------------------------------------------------------------------------------


@_in_regions
def custom_linear_solve(
    original: Function,
    matvec: Function,
    b: PyTree,
    solve: Function,
    transpose_solve: Function | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> PyTree:
    """Call `jax.lax.custom_linear_solve`.

    The functions' products and solutions have the dtypes of ``b``.
    """
    form = form_of(b)
    back = None if transpose_solve is None else wrapped(transpose_solve, _solving, form, has_aux)
    product, inner = wrapped(matvec, ending, form), wrapped(solve, _solving, form, has_aux)
    return original(product, b, inner, back, symmetric, has_aux)


@_in_regions
def custom_root(
    original: Function,
    f: Function,
    initial_guess: PyTree,
    solve: Function,
    tangent_solve: Function,
    has_aux: bool = False,
) -> PyTree:
    """Call `jax.lax.custom_root` with functions whose solutions have the first guess's dtypes."""
    form = form_of(initial_guess)
    inner, tangent = wrapped(solve, _solving, form, has_aux), wrapped(tangent_solve, ending, form)
    return original(wrapped(f, ending, form), initial_guess, inner, tangent, has_aux)


def _solving(solve: Reference, form: Form, has_aux: bool) -> Function:
    def run(function: Function, value: PyTree) -> PyTree:
        result = solve()(function, value)
        if not has_aux:
            return in_form(result, form)
        return in_form(result[0], form), *result[1:]

    return run
