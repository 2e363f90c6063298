"""Places where JAX and libraries on it want two equal dtypes, and a region may lower one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unamp._function_types import Function
from unamp.adapter.patching import find
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.adapter.state import in_regions
from unamp.policy import Rule
from unamp_jax.casting import Form, cast, eligible_dtype, eligible_dtypes, form_of, in_form
from unamp_jax.control_flow import ending, widest, wrapped
from unamp_jax.facts import facts
from unamp_jax.observing import follow_parameters
from unamp_jax.state import CONTEXT, ELIGIBLE, FLOAT32, PyTree, thread

if TYPE_CHECKING:
    import equinox
    import jax.numpy as jnp
    from flax import nnx
    from flax.core import Scope
    from jax._src.api import VJP
    from jax._src.numpy.array_methods import _IndexUpdateRef

# Each decorated function is called with the original, which it replaces, and its arguments.
_in_regions = in_regions(thread)


@_in_regions
def reduction(
    original: Function,
    operands: PyTree,
    init_values: PyTree,
    computation: Function,
    *args: Any,
    **kwargs: Any,
) -> PyTree:
    """Call `jax.lax.reduce` or `reduce_window` with operands and first values of equal dtypes.

    So are those of several operands, since XLA refuses low ones beside float32.
    """
    if jax.tree.structure(operands) == jax.tree.structure(init_values):
        init_values = jax.tree.map(_as_number_of, init_values, operands)
        values, first = form_of(operands), form_of(init_values)
        dtypes = tuple(map(widest, values.dtypes, first.dtypes))
        if len(ELIGIBLE.intersection(dtypes)) > 1:
            dtypes = tuple(FLOAT32 if dtype in ELIGIBLE else dtype for dtype in dtypes)
        wide = Form(values.structure, dtypes)
        operands, init_values = in_form(operands, wide), in_form(init_values, wide)
        if not _is_jaxs(computation):
            computation = wrapped(computation, ending, wide)
    return original(operands, init_values, computation, *args, **kwargs)


def _as_number_of(number: object, tensor: object) -> object:
    """Return a plain number in the dtype of an eligible tensor; anything else as it is.

    JAX makes the number float32.
    """
    dtype = eligible_dtype(tensor)
    return number if type(number) is not float or dtype is None else np.asarray(number, dtype)


@_in_regions
def combination(original: Function, computation: Function, *args: Any) -> object:
    """Trace the function by which a reduction or a scatter combines two numbers; keep their dtype.

    JAX's own function is a part of the operation: no policy is in force in it.
    """
    if _is_jaxs(computation):
        with CONTEXT(None):
            return original(computation, *args)
    if len(args) == 1:  # with several operands, `reduction` keeps the dtypes
        computation = wrapped(computation, ending, Form(jax.tree.structure(0), (args[0].dtype,)))
    return original(computation, *args)


def _is_jaxs(computation: Function) -> bool:
    """Return whether JAX knows a reduction by its function, and has its own operation for it.

    `jax.lax.add` is such a function. For any other, JAX calls the user's function.
    """
    named = "<locals>" not in getattr(computation, "__qualname__", "")
    return named and str(getattr(computation, "__module__", "")).startswith("jax.")


@_in_regions
def scatter_update(
    original: Function,
    x: jax.typing.ArrayLike,
    idx: object,
    y: jax.typing.ArrayLike,
    *args: Any,
    **kwargs: Any,
) -> jax.Array:
    """Call the function under ``x.at[...]`` with the stored value in the dtype of the array.

    In low, a float32 array would lose digits at the other indices.
    """
    plan, dtype = CONTEXT.value, getattr(x, "dtype", None)
    if dtype in ELIGIBLE:
        with CONTEXT(None):
            y = cast(y, dtype)
    if dtype == FLOAT32 and Rule.LOW in map(plan.rule, facts().parts["scatter"]):
        plan = plan.within("scatter", Rule.FP32, activated=True)
    with CONTEXT(plan):
        return original(x, idx, y, *args, **kwargs)


@_in_regions
def whole_update(
    original: Function,
    self: _IndexUpdateRef,
    values: jax.typing.ArrayLike,
    *args: Any,
    **kwargs: Any,
) -> jax.Array:
    """Call ``x.at[...].divide`` or ``power`` so that the array keeps its dtype.

    JAX computes them from the whole array.
    """
    if self.array.dtype in ELIGIBLE:
        with CONTEXT(None):
            return original(self, cast(values, self.array.dtype), *args, **kwargs)
    return original(self, values, *args, **kwargs)


@_in_regions
def pushforward(
    original: Function, fun: Function, primals: PyTree, tangents: PyTree, *args: Any, **kwargs: Any
) -> PyTree:
    """Call `jax.jvp` with tangents in the dtypes of the primals."""
    return original(fun, primals, in_form(tangents, form_of(primals)), *args, **kwargs)


@_in_regions
def linearized(
    original: Function,
    jaxpr: object,
    primals: Sequence[jax.core.AbstractValue],
    results: object,
    known: object,
    consts: object,
    *tangents: PyTree,
) -> PyTree:
    """Call a function that `jax.linearize` returned with tangents in the dtypes of the primals."""
    structure, dtypes = jax.tree.structure(tangents), tuple(aval.dtype for aval in primals)
    if structure.num_leaves == len(dtypes):
        tangents = in_form(tangents, Form(structure, dtypes))
    return original(jaxpr, primals, results, known, consts, *tangents)


@_in_regions
def pullback(
    original: Function, self: VJP, out_ct: PyTree, *extra_args: object
) -> Sequence[PyTree]:
    """Call a `jax.vjp` pullback with cotangents in the dtypes of the results."""
    dtypes = tuple(aval.dtype for aval in self.fun.args[-1])
    if len(dtypes) == self.out_tree.num_leaves:
        out_ct = in_form(out_ct, Form(self.out_tree, dtypes))
    return follow_parameters(original(self, out_ct, *extra_args))


@_in_regions
def older_pullback(
    original: Function,
    name: str,
    out_avals: Sequence[jax.core.AbstractValue],
    trees: Sequence[jax.tree_util.PyTreeDef],
    fun: Function,
    *cotangents: PyTree,
) -> Sequence[PyTree]:
    """Call the function under a `jax.vjp` pullback of JAX 0.8, as `pullback`."""
    if len(cotangents) == 1:
        cotangents = (
            in_form(cotangents[0], Form(trees[0], tuple(aval.dtype for aval in out_avals))),
        )
    return follow_parameters(original(name, out_avals, trees, fun, *cotangents))


@_in_regions
def linear_transpose(
    original: Function, fun: Function, *primals: PyTree, **kwargs: Any
) -> jax.tree_util.Partial:
    """Call `jax.linear_transpose`.

    The function that it returns takes cotangents in the dtypes of the results of ``fun``.
    """
    transposed, form = original(fun, *primals, **kwargs), form_of(jax.eval_shape(fun, *primals))
    return jax.tree_util.Partial(functools.partial(_transposed, form), transposed)


def _transposed(form: Form, function: Function, cotangents: PyTree) -> PyTree:
    return function(in_form(cotangents, form))


@dataclasses.dataclass(frozen=True)
class _AsStated:
    """A function on the host, whose results have the dtypes that were stated for them.

    Equal ones are one program: JAX compares them.
    """

    function: Function
    dtypes: tuple[Any, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        leaves, structure = jax.tree.flatten(self.function(*args, **kwargs))
        if len(leaves) != len(self.dtypes):
            return structure.unflatten(leaves)  # JAX says what is wrong
        # by NumPy: a callback that waited for JAX could wait for itself
        return structure.unflatten(
            [
                np.asarray(leaf).astype(dtype)
                if {getattr(leaf, "dtype", None), dtype} <= ELIGIBLE
                else leaf
                for leaf, dtype in zip(leaves, self.dtypes, strict=True)
            ]
        )


@_in_regions
def called_back(
    original: Function, callback: Function, result_shape_dtypes: PyTree, *args: Any, **kwargs: Any
) -> PyTree:
    """Call `jax.pure_callback`, or `io_callback`, with a function that keeps the stated dtypes.

    A function that was written for float32 answers low to low arguments.
    """
    dtypes = form_of(result_shape_dtypes).dtypes
    return original(_AsStated(callback, dtypes), result_shape_dtypes, *args, **kwargs)


@_in_regions
def unraveled(
    original: Function,
    sizes: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    from_dtypes: Sequence[jnp.dtype],
    to_dtype: jnp.dtype,
    arr: jax.Array,
) -> PyTree:
    """Call the inverse of `jax.flatten_util.ravel_pytree` with the array in its first dtype."""
    if to_dtype in ELIGIBLE:
        with CONTEXT(None):
            arr = cast(arr, to_dtype)
    return original(sizes, shapes, from_dtypes, to_dtype, arr)


@_in_regions
def converted_closure(
    original: Function, self: equinox.Module, /, *args: Any, **kwargs: Any
) -> PyTree:
    """Call a function of `equinox.filter_closure_convert` with the dtypes it was converted for."""
    args, kwargs = in_form((args, kwargs), form_of(self.in_struct))
    return original(self, *args, **kwargs)


def solving(place: int) -> Replacement:
    """Return the maker of a solver's replacement: the solved function returns float32 for float32.

    A solver refuses results whose dtypes differ from those of the arguments.

    Args:
        place: the position of the function among the solver's arguments.
    """

    @as_replacement
    def call(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        # while an operator, which is a module, is made, no policy is in force
        plan = thread.made_under if thread.plan is None else thread.plan
        if plan is None or not callable(args[place]):
            return original(*args, **kwargs)
        function = jax.tree_util.Partial(_as_given, args[place])
        return original(*args[:place], function, *args[place + 1 :], **kwargs)

    return call


def _as_given(function: Function, *args: PyTree, **kwargs: PyTree) -> PyTree:
    result = function(*args, **kwargs)
    if set(eligible_dtypes(*jax.tree.leaves((args, kwargs)))) != {FLOAT32}:
        return result
    with CONTEXT(None):
        return jax.tree.map(lambda leaf: cast(leaf, FLOAT32), result)


@_in_regions
def variable_put(original: Function, self: Scope, col: str, name: str, value: PyTree) -> object:
    """Call linen's `Scope.put_variable` with a value in the dtypes of the one before."""
    before = self.get_variable(col, name)
    return original(self, col, name, value if before is None else in_form(value, form_of(before)))


@_in_regions
def nnx_variable_set(
    original: Function, self: nnx.Variable, value: PyTree, *args: Any, **kwargs: Any
) -> object:
    """Call `flax.nnx.Variable.set_value` with a value in the dtypes of the one before."""
    return original(self, in_form(value, form_of(self.get_raw_value())), *args, **kwargs)


@_in_regions
def haiku_state_set(original: Function, name: str, value: PyTree) -> object:
    """Call `haiku.set_state` with a value in the dtypes of the one before."""
    try:
        before = find("haiku", "get_state")(name)
    except ValueError:  # there was none
        return original(name, value)
    return original(name, in_form(value, form_of(before)))


@_in_regions
def state_set(
    original: Function, self: equinox.nn.State, item: equinox.nn.StateIndex, value: PyTree
) -> equinox.nn.State:
    """Call `equinox.nn.State.set` with a value in the dtypes of the one before."""
    return original(self, item, in_form(value, form_of(self.get(item))))
