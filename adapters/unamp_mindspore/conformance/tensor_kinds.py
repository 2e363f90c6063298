"""MindSpore's tensors that hold their values in another tensor: `COOTensor` and `CSRTensor`."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import COOTensor, CSRTensor, Tensor, ops

from unamp.adapter.tensor_kinds import TensorKind
from unamp_mindspore.casting import cast
from unamp_mindspore.observing import dtype_name
from unamp_mindspore.state import DTYPES, FLOAT32

_SHAPE = (3, 4)


def _values(dtype: str) -> Any:
    # No low dtype has any of these numbers, so rounding shows.
    return cast(Tensor(np.array([1.001, 2.003, 3.007], np.float32)), DTYPES[dtype])


def _coo(dtype: str, device: str) -> COOTensor:
    return COOTensor(Tensor([[0, 1], [1, 2], [2, 0]], mindspore.int64), _values(dtype), _SHAPE)


def _csr(dtype: str, device: str) -> CSRTensor:
    rows, columns = (Tensor(each, mindspore.int32) for each in ([0, 1, 2, 3], [1, 2, 0]))
    return CSRTensor(rows, columns, _values(dtype), _SHAPE)


def _numbers(result: Any) -> np.ndarray:
    found: np.ndarray = cast(result.values, FLOAT32).asnumpy()
    return found


def _dtype(result: Any) -> str:
    return dtype_name(result.values.dtype)


#: Some functions of these compute the dense operation on the values; others have their own kernels.
KINDS = (
    TensorKind(
        name="mindspore.COOTensor",
        make=_coo,
        # Not sigmoid: in a low result near one, rounding of the inputs may not show.
        calls={"relu": ops.coo_relu, "exp": ops.coo_exp, "tanh": ops.coo_tanh},
        treatments=dict.fromkeys(("relu", "exp", "tanh"), "followed"),
        reason="",
        values=_numbers,
        dtype=_dtype,
    ),
    TensorKind(
        name="mindspore.CSRTensor",
        make=_csr,
        calls={
            "relu": ops.csr_relu,
            "exp": ops.csr_exp,
            "tanh": ops.csr_tanh,
            "softmax": lambda tensor: ops.csr_softmax(tensor, tensor.values.dtype),
        },
        treatments={**dict.fromkeys(("relu", "exp", "tanh"), "followed"), "softmax": "left alone"},
        reason="csr_softmax is told the dtype of its result, and has a kernel of its own",
        values=_numbers,
        dtype=_dtype,
    ),
)
