"""Casts, and the dtypes that rules cast; callers must have taken the policy out of force."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax._src import core

from unamp.adapter.arguments import leaves
from unamp.adapter.shadowing import LeftOut
from unamp_jax.state import CONTEXT, DTYPES, ELIGIBLE, FLOAT32, PyTree

if TYPE_CHECKING:
    import jax.numpy as jnp

_F16, _BF16 = DTYPES["float16"], DTYPES["bfloat16"]
_KINDS = (jax.Array, np.ndarray)


def is_tensor(value: object) -> bool:
    """Return whether a value is an array of JAX's, or a tracer of one."""
    return isinstance(value, jax.Array)


def with_numbers(value: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Return the array with numbers behind a value, inside of `jax.grad`, too.

    Raises:
        LeftOut: where there are no numbers.
    """
    found = core.to_concrete_value(value)
    if found is None:
        raise LeftOut("a transformation (jax.vmap, a custom rule) runs it without numbers")
    return found


def dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's dtype."""
    return str(tensor.dtype)


def eligible_dtype(value: Any) -> jnp.dtype | None:
    """Return the dtype of a tensor that rules cast; None for anything else.

    Python's numbers are weakly typed scalars in JAX, and take the dtype of the tensors that they
    meet: they are not eligible.
    """
    # Objects with `__jax_array__` count, too: JAX takes them for arrays (flax's variables).
    if not isinstance(value, _KINDS) and getattr(type(value), "__jax_array__", None) is None:
        return None
    dtype = getattr(value, "dtype", None)
    if (dtype is FLOAT32 or dtype is _BF16 or dtype is _F16) and not (
        value.ndim == 0 and getattr(value, "weak_type", False)
    ):
        return dtype
    return None


def eligible_dtypes(*values: PyTree) -> list[jnp.dtype]:
    """Return the dtypes of the eligible tensors in some arguments, in order."""
    return [dtype for value in leaves(values) if (dtype := eligible_dtype(value)) is not None]


def cast(value: object, dtype: jnp.dtype) -> object:
    """Return an eligible tensor in another dtype; any other value as it is."""
    found = eligible_dtype(value)
    return value if found is None or found is dtype else narrowed(value, found, dtype)


def narrowed(value: Any, found: jnp.dtype, dtype: jnp.dtype) -> jax.Array:
    """Return a tensor of one eligible dtype in another one.

    A compiler that fuses a bfloat16 result with its cast to float32 leaves the rounding out. It
    keeps a `reduce_precision`.
    """
    if not isinstance(value, _KINDS):
        value = value.__jax_array__()
    made = lax.convert_element_type(value, dtype)
    if found is _BF16 and dtype is FLOAT32 and isinstance(value, core.Tracer):
        return lax.reduce_precision(made, exponent_bits=8, mantissa_bits=7)
    return made


def mapped(to: Callable[[object, jnp.dtype], object], dtype: jnp.dtype, value: PyTree) -> PyTree:
    """Return an argument or a result with its tensors cast, in lists, tuples and dicts too."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([mapped(to, dtype, item) for item in value])
    if kind is dict:
        return {key: mapped(to, dtype, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(mapped(to, dtype, item) for item in value))
    return to(value, dtype)


class Form(NamedTuple):
    """The structure of a pytree and its dtypes, as they are before a body changes the pytree."""

    structure: jax.tree_util.PyTreeDef
    dtypes: tuple[object, ...]


def form_of(value: PyTree) -> Form:
    """Return the structure and the dtypes of a pytree."""
    leaves, structure = jax.tree.flatten(value)
    return Form(structure, tuple(getattr(leaf, "dtype", None) for leaf in leaves))


def in_form(value: PyTree, form: Form) -> PyTree:
    """Return a pytree with the dtypes of a form.

    A pytree of another structure, which JAX will refuse, is returned as it is.
    """
    leaves, structure = jax.tree.flatten(value)
    if structure != form.structure:
        return value
    with CONTEXT(None):
        pairs = zip(leaves, form.dtypes, strict=True)
        return structure.unflatten(
            [_in_dtype(leaf, dtype) if dtype in ELIGIBLE else leaf for leaf, dtype in pairs]
        )


def _in_dtype(leaf: object, dtype: jnp.dtype) -> object:
    found = getattr(leaf, "dtype", None)
    if isinstance(leaf, _KINDS) and found in ELIGIBLE and found is not dtype:
        return narrowed(leaf, found, dtype)  # a weakly typed scalar too, which `cast` leaves
    return cast(leaf, dtype)
