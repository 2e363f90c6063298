"""User functions that a primitive carries, and runs when it is batched or divided among devices.

Other programs need nothing: a jaxpr that a primitive carries was traced under the policy before the
primitive was bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from unamp._function_types import Function, Keywords
from unamp.adapter.patching import find
from unamp.adapter.state import in_regions
from unamp_jax.casting import cast
from unamp_jax.state import CONTEXT, Plan, PyTree, thread

if TYPE_CHECKING:
    from equinox import Module


def followed(primitive: str, params: Keywords, plan: Plan) -> Keywords:
    """Return a primitive's parameters with the user's functions in them under a policy.

    Without such functions they are the same parameters.
    """
    if primitive == "custom_vmap_call":
        return {**params, "rule": _batching_rule(params["rule"], plan, params["call"].out_avals)}
    if primitive == "custom_partitioning":
        return {
            **params,
            "partition": _partition(params["partition"], plan, params["call"].out_avals),
        }
    return params


def _ending_like(result: PyTree, avals: Sequence[jax.core.AbstractValue]) -> PyTree:
    """Return results in the dtypes of the results that the function itself would have."""
    leaves, structure = jax.tree.flatten(result)
    if len(leaves) != len(avals):
        return result  # JAX says what is wrong
    with CONTEXT(None):
        return structure.unflatten(
            [cast(leaf, aval.dtype) for leaf, aval in zip(leaves, avals, strict=True)]
        )


def _batching_rule(rule: Function, plan: Plan, avals: Sequence[jax.core.AbstractValue]) -> Function:
    def run(*args: Any) -> PyTree:
        with CONTEXT(plan):
            result = rule(*args)
        if not isinstance(result, tuple) or len(result) != 2:
            return result
        return _ending_like(result[0], avals), result[1]

    return run


def _partition(
    partition: Function, plan: Plan, avals: Sequence[jax.core.AbstractValue]
) -> Function:
    def run(*args: Any) -> PyTree:
        mesh, lower, *shardings = partition(*args)

        def lowered(*operands: jax.Array) -> PyTree:
            with CONTEXT(plan):
                result = lower(*operands)
            return _ending_like(result, avals)

        return mesh, lowered, *shardings

    return run


@in_regions(thread)
def inlined(original: Function, self: Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function in an `equinox.internal.noinline` function itself.

    Otherwise its program is made when it runs, by a callback that knows of no region. Where the
    function itself is chosen as late, the call is left alone.
    """
    if isinstance(self.dynamic_index, jax.core.Tracer):
        return original(self, *args, **kwargs)
    known = find("equinox.internal._noinline", "_index_to_fn")
    combine = find("equinox.internal._noinline", "hashable_combine")
    return combine(self.dynamic_fn, known[int(self.dynamic_index)])(*args, **kwargs)
