"""JAX's kinds of tensor beside the dense array, and the effect of a policy on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from unamp.adapter.tensor_kinds import TensorKind
from unamp_jax.state import Array

#: A number that no low dtype has. Rounded to one, its square is again a number that none has.
_TELLING = 1 + 2.0**-7 + 2.0**-10 + 2.0**-13

_DENSE = np.array([[1.0, 0.0, 3.0], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0]], "float32") * np.float32(
    _TELLING
)


def _dense(dtype: str, device: Any) -> Array:
    return jnp.asarray(_DENSE, dtype, device=device)


def _like(matrix: Any) -> Array:
    return _dense(str(matrix.dtype), matrix.data.device)


def _bcoo(dtype: str, device: str) -> Any:
    return sparse.BCOO.fromdense(_dense(dtype, jax.devices(device)[0]))


def _bcsr(dtype: str, device: str) -> Any:
    return sparse.BCSR.fromdense(_dense(dtype, jax.devices(device)[0]))


def _matmul(matrix: Any) -> Any:
    return matrix @ _like(matrix)


def _product(matrix: Any) -> Any:
    return sparse.bcoo_dot_general(
        matrix, _like(matrix), dimension_numbers=(((1,), (0,)), ((), ()))
    )


def _mul(matrix: Any) -> Any:
    return matrix * _like(matrix)


def _sum(matrix: Any) -> Any:
    return sparse.sparsify(jnp.sum)(matrix, axis=0)


def _sin(matrix: Any) -> Any:
    return sparse.sparsify(jnp.sin)(matrix)


def _values(result: Any) -> np.ndarray:
    dense = result if isinstance(result, jnp.ndarray) else result.todense()
    return np.asarray(dense).astype(np.float32)


def _dtype(result: Any) -> str:
    return str(result.dtype)


def _kind(
    name: str, make: Callable[[str, str], Any], calls: Mapping[str, Callable[[Any], Any]]
) -> TensorKind:
    return TensorKind(name, make, calls, dict.fromkeys(calls, "followed"), "", _values, _dtype)


def tensor_kinds() -> tuple[TensorKind, ...]:
    """Return the kinds: sparse matrices, made of dense arrays, which follow rules."""
    return (
        _kind(
            "jax.experimental.sparse.BCOO",
            _bcoo,
            {"matmul": _matmul, "sparse_mm": _product, "mul": _mul, "sum": _sum, "sin": _sin},
        ),
        _kind("jax.experimental.sparse.BCSR", _bcsr, {"matmul": _matmul}),
    )
