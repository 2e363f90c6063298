"""PyTorch's kinds of tensor that are not one dense array, and the effect of a policy on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unamp.adapter.tensor_kinds import TensorKind
from unamp_torch.devices import device_type
from unamp_torch.state import dtype_name

Call = Callable[[Tensor], Tensor]

#: Blocks of two by two beside blocks of zeros. A low dtype has none of the other numbers exactly.
_ROWS = torch.tensor(
    [[1.1, 0.7, 0.0, 0.0], [0.3, 2.1, 0.0, 0.0], [0.0, 0.0, 1.3, 0.9], [0.0, 0.0, 0.1, 1.7]]
)
_WEIGHTS = torch.linspace(0.1, 1.3, 16).reshape(4, 4)


def tensor_kinds() -> tuple[TensorKind, ...]:
    """Return the kinds: sparse tensors by layout, and nested ones.

    Products of sparse tensors in a compressed layout are among the gaps: PyTorch's CPU has no low
    kernel for them. So are masked tensors, which have no bfloat16. Quantized tensors have no
    floating dtype, so that none of their operations is cast.
    """
    return (
        _sparse(
            "sparse_coo",
            Tensor.to_sparse,
            {**_ELEMENTWISE, **_ARITHMETIC, **_PRODUCTS, **_SPARSE_PRODUCTS},
        ),
        _sparse(
            "sparse_csr", Tensor.to_sparse_csr, {**_ELEMENTWISE, **_ARITHMETIC, **_SPARSE_PRODUCTS}
        ),
        _sparse("sparse_csc", Tensor.to_sparse_csc, _ELEMENTWISE),
        _sparse("sparse_bsr", lambda tensor: tensor.to_sparse_bsr((2, 2)), _ELEMENTWISE),
        _nested("torch.nested (strided)", torch.strided, _OF_ROWS),
        _nested(
            "torch.nested (jagged)",
            torch.jagged,
            {**_OF_ROWS, "exp": torch.exp, "matmul": _product},
        ),
    )


def _product(tensor: Tensor) -> Tensor:
    return torch.matmul(tensor, _like(tensor, _WEIGHTS))


def _like(tensor: Tensor, dense: Tensor) -> Tensor:
    """Return a dense tensor on the device and in the dtype of `tensor`: no cast is needed then."""
    return dense.to(tensor.device, tensor.dtype)


_ELEMENTWISE: Mapping[str, Call] = {
    "abs": torch.abs,
    "relu": torch.relu,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "sum": torch.sum,
    "tanh": torch.tanh,
}
_ARITHMETIC: Mapping[str, Call] = {
    "add": lambda tensor: torch.add(tensor, tensor),
    "mul": lambda tensor: torch.mul(tensor, tensor),
}
_PRODUCTS: Mapping[str, Call] = {
    "addmm": lambda tensor: torch.addmm(_like(tensor, _WEIGHTS), tensor, _like(tensor, _WEIGHTS)),
    "linear": lambda tensor: torch.nn.functional.linear(tensor, _like(tensor, _WEIGHTS)),
    "matmul": _product,
    "mm": lambda tensor: torch.mm(tensor, _like(tensor, _WEIGHTS)),
}
_SPARSE_PRODUCTS: Mapping[str, Call] = {
    "sparse_addmm": lambda tensor: torch.sparse.addmm(
        _like(tensor, _WEIGHTS), tensor, _like(tensor, _WEIGHTS)
    ),
    "sparse_mm": lambda tensor: torch.sparse.mm(tensor, _like(tensor, _WEIGHTS)),
}
_OF_ROWS: Mapping[str, Call] = {
    **_ARITHMETIC,
    "linear": _PRODUCTS["linear"],
    "relu": torch.relu,
    "sin": torch.sin,
    "softmax": lambda tensor: torch.softmax(tensor, -1),
    "sum": lambda tensor: torch.sum(tensor, -1, keepdim=True),
}


def _rows(dtype: str, device: str) -> Tensor:
    return _ROWS.to(device_type(device), getattr(torch, dtype))


def _sparse(layout: str, convert: Call, calls: Mapping[str, Call]) -> TensorKind:
    def make(dtype: str, device: str) -> Tensor:
        return convert(_rows(dtype, device))

    return _followed(f"torch.{layout}", make, calls)


def _nested(name: str, layout: torch.layout, calls: Mapping[str, Call]) -> TensorKind:
    def make(dtype: str, device: str) -> Tensor:
        rows = _rows(dtype, device)
        return torch.nested.nested_tensor([rows, rows[:2]], layout=layout)

    return _followed(name, make, calls)


def _followed(
    name: str, make: Callable[[str, str], Tensor], calls: Mapping[str, Call]
) -> TensorKind:
    return TensorKind(
        name,
        make,
        calls,
        dict.fromkeys(calls, "followed"),
        "",
        _values,
        lambda result: dtype_name(result.dtype),
    )


def _values(result: Any) -> np.ndarray:
    there = torch.cat([row.flatten() for row in result.unbind()]) if result.is_nested else result
    dense = there.cpu()
    dense = dense if dense.layout is torch.strided else dense.to_dense()
    return dense.detach().float().numpy()
