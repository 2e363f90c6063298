"""MindSpore's binding of `unamp.adapter.Operations`: every operation by its canonical name.

NumPy arrays go in and come out. Canonical signatures are PyTorch's. MindSpore often has several
functions for one operation, and the CPU a kernel for only one of them: `data/operators.toml` names
that one where `_find` would find another first. `written` holds functions with other signatures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import mindspore
import numpy as np
from mindspore.experimental import optim

from unamp.adapter import NamedOperations, Way
from unamp.adapter.layered_networks import LayeredNetworks
from unamp.adapter.tensor_kinds import TensorKind
from unamp_mindspore import casting
from unamp_mindspore.conformance.layered import layered
from unamp_mindspore.conformance.recording import recorder, recording
from unamp_mindspore.conformance.tensor_kinds import KINDS
from unamp_mindspore.conformance.ways import ways
from unamp_mindspore.conformance.written import WRITTEN
from unamp_mindspore.facts import facts
from unamp_mindspore.observing import dtype_name
from unamp_mindspore.spellings import named
from unamp_mindspore.state import FLOAT32, LOW, Tensor

_FLOATING = frozenset((*LOW, FLOAT32, mindspore.float64))


class MindSporeOperations(NamedOperations):
    """See `unamp.adapter.Operations`."""

    # Kernel threads flush subnormal numbers to zero, and the caller's thread does not. MindSpore
    # chooses the number of threads for a kernel by measuring time, so either may compute:
    # https://gitee.com/mindspore/mindspore/blob/v2.10.0/mindspore/core/mindrt/src/thread/threadpool.cc
    subnormals = False
    collects = True

    # In MindSpore 2.10, 10 of 300 calls of `cross_entropy` with the same numbers, on one thread,
    # return a neighbouring number.
    repeats = False

    unreadable = (
        "a build of MindSpore for CPUs compiles graphs for them alone: Unsupported device target "
        "Ascend. This process only supports one of the ['CPU']"
    )

    def __init__(self) -> None:
        super().__init__("mindspore", _find)
        # Synchronous: otherwise a kernel's error is reported by a later operation. And no threads
        # for kernels: the suite's tensors are small, and a thread that waits for its next kernel
        # keeps a processor busy.
        mindspore.set_context(
            pynative_synchronize=True, runtime_num_threads=0, inter_op_parallel_num=1
        )
        # Operations are not passed to another thread, which takes longest of all on a busy machine.
        # This has an effect only before the first computation.
        os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
        # The first call with numbers fails where MindSpore was compiled for another NumPy.
        with suppress(SystemError):
            mindspore.ops.zeros((1,))

    def tensor_kinds(self) -> Sequence[TensorKind]:
        """Return the kinds of tensor that are not one dense array."""
        return KINDS

    def ways(self) -> tuple[Way, ...]:
        """Return the ways in which MindSpore runs functions."""
        return ways()

    def layered(self) -> LayeredNetworks:
        """Return the network for checks of layer rules."""
        return layered()

    def tensor(
        self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False
    ) -> Tensor:
        """Return a tensor with the array's values, shape and dtype."""
        return Tensor(np.asarray(array))

    def parameter(self, array: np.ndarray, *, device: str = "cpu") -> Tensor:
        """Return a parameter, as layers have."""
        return mindspore.Parameter(self.tensor(array))

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        """Change a parameter in place, as optimizers do."""
        mindspore.ops.assign(parameter, self.tensor(array))

    def adam(self, array: np.ndarray, *, device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that takes one step of Adam with a gradient, and returns the result."""
        parameter = self.parameter(array, device=device)
        optimizer = optim.AdamW([parameter], lr=0.1)  # Adam is one primitive: no rule reaches it

        def step(gradient: np.ndarray) -> np.ndarray:
            optimizer((self.tensor(gradient),))
            return self.numpy(parameter)

        return step

    def numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor's values; low dtypes arrive as float32."""
        if tensor.dtype in LOW:
            with recorder:
                # Before 2.10, an operation of another thread breaks a recording in this one.
                tensor = casting.widened(tensor)
        return tensor.asnumpy()  # type: ignore[no-any-return]

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a tensor in another dtype: a floating one by a copy, faster than the operation."""
        wanted = getattr(mindspore, dtype)
        if tensor.dtype == wanted:
            return tensor
        return (
            casting.recast(tensor, wanted)
            if {tensor.dtype, wanted} <= _FLOATING
            else tensor.astype(wanted)
        )

    def dtype(self, tensor: Tensor) -> str:
        """Return the name of a tensor's dtype."""
        return dtype_name(tensor.dtype)

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], *, loss_scale: float = 1.0
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return ``function(*inputs)`` and the gradient of its scaled value for each input."""
        values: list[Tensor] = []

        def scaled(*leaves: Tensor) -> Tensor:
            values.append(function(*leaves))
            if loss_scale == 1.0:
                return values[-1]
            # The CPU of MindSpore 2.8 has no kernel that multiplies bfloat16.
            return (
                casting.cast(values[-1], FLOAT32) if values[-1].dtype in LOW else values[-1]
            ) * loss_scale

        with recorder, recording():
            gradients = mindspore.grad(scaled, tuple(range(len(inputs))))(*inputs)
        return values[-1], list(gradients) if isinstance(gradients, tuple) else [gradients]


def _find(op: str) -> Callable[..., Any] | None:
    if op in facts().erratic:
        return None
    if op in WRITTEN:
        return WRITTEN[op]
    chosen = facts().functions.get(op)
    for path in (
        (chosen,)
        if chosen
        else (f"ops.{op}", f"mint.nn.functional.{op}", f"mint.{op}", f"Tensor.{op}")
    ):
        found = _method(path) if path.startswith("Tensor.") else named(path)
        if callable(found) and not isinstance(found, type):
            return _axis(found) if op in facts().axis else found
    return None


def _method(path: str) -> Callable[..., Any] | None:
    """Return a function that looks a method of Tensor up at each call: a region replaces it."""
    name = path.rpartition(".")[2]
    return (
        (lambda tensor, *args, **kw: getattr(tensor, name)(*args, **kw))
        if hasattr(Tensor, name)
        else None
    )


def _axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose argument `dim` is the given function's `axis`."""

    def with_dim(*args: Any, dim: int, **kwargs: Any) -> Any:
        return function(*args, axis=dim, **kwargs)

    return with_dim
