"""Paddle's kinds of tensor that are not one dense array, and the effect of a policy on each.

Gradients of sparse embeddings (`SelectedRows`) are left out: no operation takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import paddle

from unamp.adapter.tensor_kinds import TensorKind
from unamp_paddle.state import Tensor

#: No low dtype has any of these numbers, so rounding shows.
_NUMBERS = np.linspace(0.3, 1.7, 4, dtype=np.float32)
_SHAPE = [3, 4]

_REASON = (
    "on the CPU Paddle has float32 kernels alone for sparse tensors, and no product of sparse "
    "matrices: a list that asks for another dtype is refused, a level or a preset leaves their "
    "functions alone"
)


def tensor_kinds() -> tuple[TensorKind, ...]:
    """Return the kinds: sparse tensors with coordinates, and with compressed rows."""
    return _kind("paddle.sparse_coo_tensor", _coo), _kind("paddle.sparse_csr_tensor", _csr)


def _coo(dtype: str, device: str) -> Tensor:
    indices, values = [[0, 1, 2, 2], [1, 0, 2, 3]], _values_of(dtype, device)
    return paddle.sparse.sparse_coo_tensor(indices, values, _SHAPE, place=values.place)


def _csr(dtype: str, device: str) -> Tensor:
    values = _values_of(dtype, device)
    return paddle.sparse.sparse_csr_tensor(
        [0, 1, 2, 4], [1, 0, 2, 3], values, _SHAPE, place=values.place
    )


def _values_of(dtype: str, device: str) -> Tensor:
    return paddle.to_tensor(_NUMBERS, place=device).astype(dtype)


def _kind(name: str, make: Callable[[str, str], Tensor]) -> TensorKind:
    sparse = paddle.sparse
    dense = np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(4, 2)
    calls: dict[str, Callable[[Any], Any]] = {
        "add": lambda x: sparse.add(x, x),
        "div": lambda x: sparse.divide(x, 3.0),
        "expm1": sparse.expm1,
        "log1p": sparse.log1p,
        "mul": lambda x: sparse.multiply(x, x),
        "pow": partial(sparse.pow, factor=2.0),
        "relu": sparse.nn.functional.relu,
        "sin": sparse.sin,
        "softmax": sparse.nn.functional.softmax,
        "sparse_mm": lambda x: sparse.matmul(x, paddle.to_tensor(dense, place=x.place)),
        "sqrt": sparse.sqrt,
        "square": sparse.square,
        "sub": lambda x: sparse.subtract(x, x),
        "sum": sparse.sum,
        "tanh": sparse.tanh,
    }
    return TensorKind(name, make, calls, dict.fromkeys(calls, "refused"), _REASON, _values, _dtype)


def _values(result: Tensor) -> np.ndarray:
    numbers: np.ndarray = (
        (result if result.is_dense() else result.to_dense()).numpy().astype(np.float32)
    )
    return numbers


def _dtype(result: Tensor) -> str:
    return str(result.dtype).removeprefix("paddle.")
