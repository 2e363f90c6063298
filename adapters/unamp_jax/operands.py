"""The operands of a primitive: their abstract values, and casts by the primitive's own trace."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jax import lax
from jax._src import core

from unamp._function_types import Keywords
from unamp_jax.state import DTYPES, FLOAT32

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

#: The arguments of `Primitive.bind_with_trace` after the operands: their abstract values, in the
#: newest releases, and the parameters by name.
Rest = tuple[Any, ...]

#: Whether this release is one that hands over abstract values.
_AVALS = len(inspect.signature(core.Primitive.bind_with_trace).parameters) == 5
BF16 = DTYPES["bfloat16"]


def abstract_values(args: Sequence[object], rest: Rest) -> Sequence[jax.core.AbstractValue]:
    """Return the abstract values of the operands of a call of `Primitive.bind_with_trace`."""
    return rest[0] if _AVALS else [core.typeof(value) for value in args]


def cast(
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
    avals: Sequence[jax.core.AbstractValue],
    places: list[int],
    wanted: jnp.dtype,
) -> tuple[list[object], Rest]:
    """Return the arguments of a `bind_with_trace` call with some operands in another dtype."""
    given = list(args)
    for n in places:
        if avals[n].dtype is not wanted:
            given[n] = convert(trace, given[n], avals[n].dtype, wanted)
    return given, ([core.typeof(value) for value in given], rest[-1]) if _AVALS else (rest[-1],)


def convert(
    trace: jax.core.Trace, value: jax.typing.ArrayLike, found: jnp.dtype, wanted: jnp.dtype
) -> jax.Array:
    """Return an operand in another dtype."""
    params = {"new_dtype": wanted, "weak_type": False, "sharding": None}
    made = bind(trace, lax.convert_element_type_p, value, params)
    if found is BF16 and wanted is FLOAT32 and isinstance(made, core.Tracer):
        return rounded(trace, made)
    return made


def rounded(trace: jax.core.Trace, value: jax.Array) -> jax.Array:
    """Round a float32 number that was cast from bfloat16: no compiler leaves this rounding out."""
    return bind(trace, lax.reduce_precision_p, value, {"exponent_bits": 8, "mantissa_bits": 7})


def bind(
    trace: jax.core.Trace, primitive: core.Primitive, value: jax.typing.ArrayLike, params: Keywords
) -> jax.Array:
    """Bind a primitive of one operand by a trace."""
    if _AVALS:
        return primitive.bind_with_trace(trace, [value], [core.typeof(value)], params)
    return primitive.bind_with_trace(trace, [value], params)
