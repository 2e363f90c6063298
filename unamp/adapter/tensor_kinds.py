"""The kinds of tensor of a framework beside the dense one.

An adapter lists them for conformance and for the docs. Sparse, ragged, nested, jagged, masked and
quantized tensors, slices of a gradient: each is made of several dense ones, and an adapter decides
how a policy treats it. The method ``tensor_kinds()`` of a framework's `Operations` returns its
kinds; without the method there are none.

The suite calls each operation twice: on float32 values under a policy that allows it, on low values
under one that denies it. It must find the treatment that is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unamp.adapter.framework_types import Tensor
from unamp.errors import AdapterError

if TYPE_CHECKING:
    import numpy as np

#: Treatments of an operation on a kind of tensor: its rule is followed; `NotExpressible` is raised
#: before anything is computed; or it computes in a region what it computes outside.
TREATMENTS = ("followed", "refused", "left alone")


@dataclass(frozen=True)
class TensorKind:
    """A kind of tensor that is not one dense array.

    Attributes:
        name: the framework's own name of it: ``"torch.sparse_coo"``, ``"tf.RaggedTensor"``.
        make: returns a tensor of the kind, given the names of a floating dtype and a device:
            ``"float32"``, ``"bfloat16"``; ``"cpu"``, ``"gpu"``.
        calls: operations of the vocabulary by canonical name, each as a function of such a tensor.
            Its other operands are on the tensor's device. Rounding to the low dtype must change the
            result.
        treatments: one of `TREATMENTS` for each operation of `calls`.
        reason: why an operation is refused or left alone; empty where all are followed.
        values: returns the values of a call's result as a NumPy array.
        dtype: returns the name of the dtype of a call's result: ``"bfloat16"``.

    Raises:
        AdapterError: for a kind that contradicts this.
    """

    name: str
    make: Callable[[str, str], Tensor]
    calls: Mapping[str, Callable[[Tensor], Tensor]]
    treatments: Mapping[str, str]
    reason: str
    values: Callable[[Tensor], np.ndarray]
    dtype: Callable[[Tensor], str]

    def __post_init__(self) -> None:
        if self.calls.keys() != self.treatments.keys():
            raise AdapterError(
                f"{self.name}: every call needs a treatment, and every treatment a call"
            )
        if unknown := set(self.treatments.values()) - set(TREATMENTS):
            raise AdapterError(
                f"{self.name}: treatments are {', '.join(TREATMENTS)}, not {min(unknown)!r}"
            )
        if not self.reason and set(self.treatments.values()) != {"followed"}:
            raise AdapterError(f"{self.name}: say why an operation is not followed")
