"""Running a network forward and backward, under a policy or outside of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import unamp
from unamp.adapter import Operations, OpRecord
from unamp_conformance.check.networks import Arrays, Functions, Network
from unamp_conformance.check.rounding import cast

__all__ = ["LOSS_SCALE", "NetworkRun", "run"]

#: Keeps the small gradients of float16 above what it rounds to zero. A power of two: it changes no
#: digit.
LOSS_SCALE = 256.0

Region = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class NetworkRun:
    """The outcome of a run: output, loss, gradients, buffers afterwards, dtypes, trace, calls.

    Gradients are by parameter.
    """

    output: np.ndarray
    loss: np.ndarray
    gradients: Arrays
    buffers: Arrays
    dtypes: Mapping[str, str]
    records: tuple[OpRecord, ...]
    called: tuple[str, ...]


def run(
    network: Network,
    operations: Operations,
    region: Region = nullcontext,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    trace: bool = False,
) -> NetworkRun:
    """Run a network's loss inside a region, and its backward pass outside.

    Args:
        network: the network.
        operations: the framework's namespace.
        region: makes the region.
        dtype: the dtype of parameters and floating data: float32, or float64 for the reference.
        device: ``"cpu"`` or ``"gpu"``.
        trace: record what ran.
    """

    def tensors(arrays: Arrays) -> dict[str, Any]:
        return {
            name: operations.tensor(cast(a, dtype) if a.dtype == np.float32 else a, device=device)
            for name, a in arrays.items()
        }

    parameters, data = tensors(network.parameters()), tensors(network.inputs())
    buffers = {
        n: operations.buffer(cast(a, dtype), device=device) for n, a in network.statistics().items()
    }
    functions = Functions(operations)
    kept: list[Any] = []
    records: list[OpRecord] = []

    def loss(*leaves: Any) -> Any:
        given = dict(zip(parameters, leaves, strict=True)) | buffers
        with unamp.trace() if trace else nullcontext() as traced, region():
            output = network.forward(functions, given, data)
            value = network.loss(functions, output, data)
        kept.append(output)
        records.extend(traced.records if traced else ())
        return value

    value, gradients = operations.value_and_grad(
        loss, list(parameters.values()), loss_scale=LOSS_SCALE
    )
    named = dict(zip(parameters, gradients, strict=True))
    # The caller's own parameters must come out as they went in.
    dtypes = {f"parameter {n}": operations.dtype(t) for n, t in parameters.items()}
    dtypes |= {
        f"gradient of {n}": "none" if g is None else operations.dtype(g) for n, g in named.items()
    }
    dtypes |= {f"buffer {n}": operations.dtype(t) for n, t in buffers.items()}
    return NetworkRun(
        _float64(operations, kept[-1]),
        _float64(operations, value),
        {n: _float64(operations, g) / LOSS_SCALE for n, g in named.items() if g is not None},
        {n: _float64(operations, t) for n, t in buffers.items()},
        dtypes,
        tuple(records),
        tuple(functions.called),
    )


def _float64(operations: Operations, tensor: Any) -> np.ndarray:
    return operations.numpy(tensor).astype(np.float64)
