"""Patches for code that no rule may reach: optimizers of closures, initial values, metrics."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unamp._function_types import Function, Keywords
from unamp.adapter.patching import Patch, Patches, find
from unamp.adapter.replacing import AttributePatch, Replacement, as_replacement
from unamp.adapter.state import in_regions, runs_without_policy, suspended
from unamp.adapter.wrapping import with_derived
from unamp_jax import keras_policies
from unamp_jax.casting import cast, eligible_dtype, form_of, in_form, mapped
from unamp_jax.composites import code_patch
from unamp_jax.equal_dtypes import nnx_variable_set
from unamp_jax.finding import hook
from unamp_jax.state import CONTEXT, FLOAT32, Array, Plan, PyTree, thread

if TYPE_CHECKING:
    from flax.training.dynamic_scale import DynamicScale

_in_regions = in_regions(thread)


def patches(library: str) -> Iterator[Patch]:
    """Yield the patches of a library that is imported."""
    if library == "optax":  # a tuple of closures, which are wrapped when they are read
        transformation = find("optax", "GradientTransformation")
        yield AttributePatch(transformation, "init", partial(_field, runs_without_policy(thread)))
        yield AttributePatch(transformation, "update", partial(_field, updating(0)))
        yield code_patch(find("optax", "MultiSteps.update"), updating(1))
    if library == "flax.nnx" and (averages := find("flax.nnx", "EMA")) is not None:
        # of parameters; new in flax 0.12
        yield code_patch(averages.update, runs_without_policy(thread))
    if library == "flax.nnx" and (setter := find("flax.nnx", "Variable.set_value")) is not None:
        # new in flax 0.12, too
        yield code_patch(setter, nnx_variable_set)
    if library == "haiku":
        # Tuples of closures, too; a layer's parameters have the dtypes of its first inputs.
        for kind in (
            "Transformed",
            "TransformedWithState",
            "MultiTransformed",
            "MultiTransformedWithState",
        ):
            yield AttributePatch(
                find("haiku", kind), "init", partial(_field, runs_without_policy(thread))
            )
    made_by = hook(library, *_MADE_BY[library]) if library in _MADE_BY else None
    if made_by is not None:
        yield AttributePatch(made_by, "__call__", _making)
    if library == "keras":
        yield from keras_policies.patches()


#: The metaclasses of layers, whose calls make layers: initial values follow no rule.
_MADE_BY = {
    "flax.nnx": ("flax.nnx.pytreelib", "PytreeMeta"),
    "equinox": ("equinox._module._module", "_ModuleMeta"),
}


@as_replacement
def _making(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Make a layer with no policy in force, except in functions that are converted meanwhile."""
    plan = thread.plan
    if plan is None:
        return original(*args, **kwargs)
    outer, thread.made_under = thread.made_under, plan
    try:
        with suspended(thread):
            return original(*args, **kwargs)
    finally:
        thread.made_under = outer


@as_replacement
def converting(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `equinox.filter_closure_convert`.

    A linear operator is a module that traces a function while it is made, and that is no initial
    value: the function follows the policy.
    """
    plan = thread.made_under if thread.plan is None else thread.plan
    with CONTEXT(plan):
        return original(*args, **kwargs)


def _field(wrap: Callable[[Function], Function], own: Any) -> property:
    """Return the replacement of a field that holds a function: it gives the function wrapped."""
    return property(lambda self: wrap(own.__get__(self)))


def updating(place: int) -> Replacement:
    """Return the maker of an update's replacement: float32 parameters get float32 gradients.

    No policy is in force in the update, except in a loss function that it calls. A program that
    changes gradients by hand may make them low, and in float16 their squares are zero.

    Args:
        place: the gradients' place among the arguments; the state and the parameters follow.
    """

    @as_replacement
    def call(original: Function, /, *args: Any, **kwargs: Any) -> PyTree:
        if thread.plan is None:
            return original(*args, **kwargs)
        given = args[place:]
        parameters = kwargs.get("params", given[2] if len(given) > 2 else None)
        kwargs = with_losses(kwargs)
        with suspended(thread):
            if given and parameters is not None:
                args = (*args[:place], _as_wide(given[0], parameters), *given[1:])
            return original(*args, **kwargs)

    return call


def _as_wide(gradients: PyTree, parameters: PyTree) -> PyTree:
    """Return gradients with those of float32 parameters in float32."""

    def wide(gradient: object, parameter: object) -> object:
        return cast(gradient, FLOAT32) if eligible_dtype(parameter) is FLOAT32 else gradient

    try:
        return jax.tree.map(wide, gradients, parameters, is_leaf=lambda leaf: leaf is None)
    except ValueError:  # the structures differ: optax says what is wrong, if anything is
        return gradients


def with_losses(extra: Keywords) -> Keywords:
    """Return a step's named arguments with loss functions under the policy in force now."""
    plan = thread.plan
    # Not modules, which hold parameters: they can be called, too.
    functions = {
        name
        for name, value in extra.items()
        if callable(value) and jax.tree_util.all_leaves([value])
    }
    return {
        name: _under(plan, value) if name in functions else value for name, value in extra.items()
    }


def _under(plan: Plan | None, function: Function) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None:
            return function(*args, **kwargs)
        with CONTEXT(plan):
            return function(*args, **kwargs)

    return run


@_in_regions
def accumulating(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call a metric's method so that it counts and adds up in float32, whatever its inputs."""
    with suspended(thread):
        return original(
            *args, **{name: mapped(cast, FLOAT32, value) for name, value in kwargs.items()}
        )


@_in_regions
def scaling(
    original: Function, /, self: DynamicScale, fun: Function, *args: Any, **kwargs: Any
) -> Function:
    """Stand in for `flax.training.dynamic_scale.DynamicScale.value_and_grad`.

    No policy is in force in the code that scales, unscales and checks gradients, which float16
    would defeat; the function follows the policy.
    """
    return runs_without_policy(thread)(original(self, _under(thread.plan, fun), *args, **kwargs))


@_in_regions
def minimizing(original: Function, /, fun: Function, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `jax.scipy.optimize.minimize`.

    No policy is in force in its steps; the function follows the policy. What it returns for a
    float32 point is float32, as the step wants it.
    """
    followed = _under(thread.plan, fun)

    def run(point: Array, *rest: Any) -> Any:
        value = followed(point, *rest)
        return cast(value, FLOAT32) if eligible_dtype(point) is FLOAT32 else value

    with suspended(thread):
        return original(run, *args, **kwargs)


@_in_regions
def solving_a_system(
    original: Function,
    A: PyTree,  # noqa: N803 - the name that callers write
    b: PyTree,
    x0: PyTree = None,
    *,
    M: PyTree = None,  # noqa: N803
    **kwargs: Any,
) -> tuple[PyTree, Any]:
    """Stand in for `jax.scipy.sparse.linalg.cg`, `gmres` and `bicgstab`.

    No policy is in force in their steps, which are float32; the matrix and the preconditioner
    follow the policy. The solution has the dtypes of ``b``.
    """
    form, matrix, near = form_of(b), _product(thread.plan, A), _product(thread.plan, M)
    with suspended(thread):
        wide, first = (jax.tree.map(lambda leaf: cast(leaf, FLOAT32), each) for each in (b, x0))
        solution, info = original(matrix, wide, first, M=near, **kwargs)
    return in_form(solution, form), info


def _product(plan: Plan | None, matrix: Any) -> Any:
    """Return the product with a matrix of a solver under a policy, in the vector's dtypes."""
    if matrix is None or isinstance(matrix, (np.ndarray, jax.Array)):
        return matrix  # its product states the highest precision
    followed = _under(plan, matrix if callable(matrix) else partial(operator.matmul, matrix))
    return lambda vector: in_form(followed(vector), form_of(vector))


def layer_calls(
    homes: Callable[[], Iterable[type | None]],
    follow: Callable[[Function], Function],
    which: Callable[[type], bool] = lambda kind: True,
    others: Iterable[Patch] = (),
) -> Patches:
    """Return the patches by which calls of layers are followed, given their base classes.

    All classes that exist when the patches are applied are patched, each at its own method: no
    method of the base classes is always called.

    Args:
        homes: returns the base classes; None where a library is not imported.
    """

    def base() -> Iterable[Patch]:
        kinds = filter(which, _calling([home for home in homes() if home is not None]))
        return [
            *(AttributePatch(kind, "__call__", partial(_followed, follow)) for kind in kinds),
            *others,
        ]

    return Patches(base)


def _followed(follow: Callable[[Function], Function], own: Any) -> Function:
    if hasattr(own, "__get__") and not hasattr(own, "__code__"):
        # equinox keeps methods in objects of its own
        return follow(lambda self, *args, **kwargs: own.__get__(self, type(self))(*args, **kwargs))
    return follow(own)


def _calling(bases: list[type]) -> Iterator[type]:
    kinds = dict.fromkeys(chain.from_iterable(map(with_derived, bases)))
    return (kind for kind in kinds if "__call__" in vars(kind))
