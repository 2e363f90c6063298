"""Running a network forward and backward, under a policy or as the float64 reference, and what its numbers may deviate by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import unamp
from unamp.adapter import Operations, OpRecord
from unamp_conformance.networks import Arrays, Functions, Network
from unamp_conformance.rounding import UNIT_ROUNDOFF, cast

__all__ = ["LOSS_SCALE", "NetworkRun", "Reference", "relative_error", "run"]

#: Keeps the small gradients of float16 above what it rounds to zero. A power of two: it changes no digit.
LOSS_SCALE = 256.0

_PERTURBATIONS = 3

Region = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class NetworkRun:
    """What came out: output, loss, gradients by parameter, buffers afterwards, dtypes, the trace, the operations called."""

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
    perturb: Callable[[np.ndarray], np.ndarray] = lambda a: a,
    trace: bool = False,
) -> NetworkRun:
    """Run a network's loss inside a region, and its backward pass outside.

    Args:
        network: the network.
        operations: the framework's namespace.
        region: makes the region.
        dtype: the dtype of parameters and floating data: float32, or float64 for the reference.
        device: ``"cpu"`` or ``"gpu"``.
        perturb: applied to parameters and floating data in float64 before they are cast.
        trace: record what ran.
    """

    def tensors(arrays: Arrays) -> dict[str, Any]:
        return {
            name: operations.tensor(cast(perturb(a.astype(np.float64)), dtype) if a.dtype == np.float32 else a, device=device)
            for name, a in arrays.items()
        }

    parameters, data = tensors(network.parameters()), tensors(network.inputs())
    buffers = {n: operations.buffer(cast(a, dtype), device=device) for n, a in network.statistics().items()}
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

    value, gradients = operations.value_and_grad(loss, list(parameters.values()), loss_scale=LOSS_SCALE)
    named = dict(zip(parameters, gradients, strict=True))
    # The caller's own parameters must come out as they went in.
    dtypes = {f"parameter {n}": operations.dtype(t) for n, t in parameters.items()}
    dtypes |= {f"gradient of {n}": "none" if g is None else operations.dtype(g) for n, g in named.items()}
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


def relative_error(observed: np.ndarray, exact: np.ndarray, scale: float = 0.0) -> float:
    """The error's norm over the exact value's, and ``scale`` keeps what is nearly nothing from counting."""
    return _norm(observed - exact) / (_norm(exact) + scale or 1.0)


def _norm(values: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


class Reference:
    """A network in float64, and how far a precision may lead from it.

    The bound. A rounding of relative size u somewhere in a network acts like a change of its neighbouring values by u, and
    how much the network magnifies such changes is measured: in float64, all parameters and data are changed at random by up
    to u at once, and what moves, moves by ``moved``. In a precision with unit roundoff u each of the ``depth`` operations
    on the longest path rounds its inputs, weights and result: three sets of changes. Independent ones add as squares, so
    they move a result by about ``sqrt(3 * depth) * moved``; the bound is twice that, plus 4u for the last rounding. It
    holds the float16 results eight times tighter than the bfloat16 ones, so the one does not pass for the other.
    """

    def __init__(self, network: Network, operations: Operations, device: str = "cpu") -> None:
        self.network = network
        self._operations = operations
        self._device = device
        self._moved: dict[str, dict[str, float]] = {}

    @cached_property
    def exact(self) -> NetworkRun:
        """The float64 run, outside any region: float64 is never cast."""
        return run(self.network, self._operations, dtype=self._dtype, device=self._device)

    @cached_property
    def _dtype(self) -> str:
        """What the reference runs in: float32 where the framework has one of the network's operations in nothing higher."""
        try:
            run(self.network, self._operations, dtype="float64", device=self._device)
        except Exception:
            return "float32"
        return "float64"

    def errors(self, observed: NetworkRun) -> dict[str, float]:
        """The relative error of output, loss, buffers and every gradient."""
        exact = self.exact
        # A gradient that is nothing beside the others (a bias before a batch norm has none at all) is held to their size.
        whole = np.sqrt(sum(_norm(g) ** 2 for g in exact.gradients.values()) / len(exact.gradients))
        found = {
            "output": relative_error(observed.output, exact.output),
            "loss": relative_error(observed.loss, exact.loss),
        }
        found |= {f"buffer {n}": relative_error(observed.buffers[n], b) for n, b in exact.buffers.items()}
        found |= {
            f"gradient of {n}": relative_error(observed.gradients.get(n, np.zeros_like(g)), g, 0.1 * whole)
            for n, g in exact.gradients.items()
        }
        return found

    def bounds(self, precision: str) -> dict[str, float]:
        """For every entry of `errors`, what a precision allows."""
        u = UNIT_ROUNDOFF[precision]
        if precision not in self._moved:
            generator = np.random.default_rng(0)
            moved = [self.errors(self._perturbed(generator, u)) for _ in range(_PERTURBATIONS)]
            self._moved[precision] = {name: max(m[name] for m in moved) for name in moved[0]}
        factor = 2.0 * np.sqrt(3.0 * self.network.depth)
        return {name: float(factor * moved + 4.0 * u) for name, moved in self._moved[precision].items()}

    def _perturbed(self, generator: np.random.Generator, u: float) -> NetworkRun:
        def perturb(array: np.ndarray) -> np.ndarray:
            return array * (1.0 + generator.uniform(-u, u, array.shape))

        return run(self.network, self._operations, dtype=self._dtype, device=self._device, perturb=perturb)
