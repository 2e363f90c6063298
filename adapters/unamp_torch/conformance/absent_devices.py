"""Devices that are absent: fake tensors on them go through PyTorch's dispatcher.

They have a device, a shape and a dtype, and no numbers. The dtypes that reach a kernel are read,
after autocast and the kernels of the adapter have cast. The same is done in the backward pass,
whose nodes are called one by one; see `unamp_torch.conformance.fake_gradients`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from unamp.adapter.absent_devices import (
    AbsentDevice,
    Computed,
    Kind,
    Numbers,
    Programs,
    entering,
    kind_of,
    result_of,
)
from unamp_torch.conformance import fake_gradients, joint_graphs, second_device
from unamp_torch.devices import accelerator
from unamp_torch.numbers import floating
from unamp_torch.state import LOW, dtype_name

#: The operations of kernels that have another name.
_KERNELS = {
    "nll_loss_forward": "nll_loss",
    "_thnn_fused_lstm_cell": "lstm_cell",
    "_thnn_fused_gru_cell": "gru_cell",
    "_native_batch_norm_legit_functional": "batch_norm",
}

#: The ending of the names of kernels that compute gradients.
_BACKWARD = re.compile(r"_backward(_data|_impl)?$")

#: Why fake tensors cannot run a function, by the error that they raise.
_REASONS = {
    **dict.fromkeys(
        ("DataDependentOutputException", "DynamicOutputShapeException"),
        "what it gives depends on numbers",
    ),
    **dict.fromkeys(
        ("UnsupportedFakeTensorException", "UnsupportedOperatorException"), "it has no fake kernel"
    ),
    "NotImplementedError": "it has no fake kernel",
    "Inexpressible": "its gradient is written in Python",
    "AcceleratorError": "its kernel asks for the device itself",
    "NoGuard": "this build of PyTorch cannot be given a guard for the device",
}

#: Phrases of errors of kernels that ask for the device itself: in a build without support for it,
#: and where there is no such device.
_ASKS = (
    "not compiled with",
    "not linked with",
    "data is not allocated",
    "no NVIDIA driver",
    "No CUDA GPUs",
)

#: The calls that the function being read makes.
_places = fake_gradients.Places()


def absent_devices() -> tuple[AbsentDevice, ...]:
    """Return the devices that this build of PyTorch knows, and that are not here."""
    if accelerator() not in (None, second_device.NAME):
        return ()
    cpu = AbsentDevice("fake:cpu", partial(_read, "cpu"), _places.named, "cpu", _reason)
    return tuple(
        _device(name, cpu) for name in ("cuda", "mps", "xpu", "hpu") if hasattr(torch, name)
    )


def _device(name: str, cpu: AbsentDevice) -> AbsentDevice:
    region = "gpu" if name == "cuda" else name
    graph = AbsentDevice(f"traced:{name}", partial(_trace, name), _places.named, region, _reason)
    return AbsentDevice(
        f"fake:{name}",
        partial(_read, name),
        _places.named,
        region,
        _reason,
        partial(_run, name),
        (graph, cpu),
    )


def _reason(error: Exception) -> str:
    """Return why fake tensors cannot run a function; empty where PyTorch refuses the call."""
    if "not implemented for '" in str(error):  # the call's dtype
        return ""
    if why := _REASONS.get(type(error).__name__):
        return why
    asks = any(phrase in str(error) for phrase in _ASKS)
    return "its kernel asks for the device itself" if asks else ""


def _read(
    device: str,
    function: Callable[..., Any],
    leaves: Sequence[np.ndarray],
    *others: Sequence[np.ndarray],
) -> Programs:
    with _tensors(device, leaves, *others) as made, _Kernels() as kernels:
        result = function(*made)
        if leaves:
            fake_gradients.gradients([result], made[0], [torch.ones_like(result)], places=_places)
    return Programs(kernels.found, None)


def _run(device: str, function: Callable[..., Any], *arrays: Sequence[np.ndarray]) -> None:
    """Run a function without its backward pass."""
    with _tensors(device, *arrays) as made:
        function(*made)


def _trace(device: str, function: Callable[..., Any], *arrays: Sequence[np.ndarray]) -> Programs:
    """Read the joint graph that AOTAutograd traces."""
    with _tensors(device, *arrays) as made:
        graph = joint_graphs.joint_graph(function, made, _places)
        with torch.no_grad(), _Kernels() as kernels:
            joint_graphs.run(graph, _places)
    return Programs(kernels.found, None)


@contextmanager
def _tensors(
    device: str, leaves: Sequence[np.ndarray], *others: Sequence[np.ndarray]
) -> Iterator[list[list[Tensor]]]:
    fake_gradients.guard(device)
    _places.forget()
    with FakeTensorMode(), torch.set_grad_enabled(bool(leaves)):
        differentiated = [_tensor(array, device).requires_grad_() for array in leaves]
        yield [differentiated, *([_tensor(array, device) for array in arrays] for arrays in others)]


def _tensor(array: np.ndarray, device: str) -> Tensor:
    return torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)), device=device)


class _Kernels(TorchDispatchMode):
    """A mode that notes the kernels that are called, and the numbers from other places."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Computed] = []
        self._made = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        place, backward = _places.current, _places.backward
        given, made = floating((args, kwargs)), floating(result)
        taken = [(self._made.get(tensor), (_name(tensor),), place) for tensor in given]
        entered = frozenset().union(*(entering(*each) for each in taken))
        self.found += (result for each in taken if not backward for result in result_of(*each))
        name, carried = func.overloadpacket.__name__, tuple(sorted(entered))
        narrows = name == "_to_copy"
        if given and (kind := _kind(name)):
            if not _reads_all(kind):
                carried = tuple(sorted(entering(*taken[0])))
            results = tuple(dict.fromkeys(map(_name, made[:1])))
            # A kernel that reads low numbers and returns their sum in float32 needs no float32
            # copy of them: it computes in float32.
            operands = (
                results
                if kind == "reduction" and results == ("float32",)
                else _operands(kind, given)
            )
            # Likewise a kernel of the backward pass that computes in float32 and returns a low
            # gradient: it rounds, as a cast does.
            narrows = narrows or (
                backward and kind == "reduction" and operands == ("float32",) != results
            )
            self.found.append(
                Computed(
                    place, backward, name, kind, operands, operands if narrows else results, carried
                )
            )
        for tensor in made:
            narrowed = narrows and tensor.dtype in LOW
            if narrowed:
                low = (_name(tensor),)
                self.found.append(Computed(place, backward, name, "elementwise", low, low, carried))
            self._made[tensor] = Numbers(
                place, backward, frozenset({_name(tensor)}) if narrowed else entered
            )
        return result


def _reads_all(kind: Kind) -> bool:
    """Return whether the dtypes of all tensors count for the dtype that an operation computes in.

    Statistics and parameters of a norm stay in float32.
    """
    return kind in ("product", "elementwise")


def _operands(kind: Kind, given: list[Tensor]) -> tuple[str, ...]:
    """Return the dtypes in which an operation of a kind computes from tensors."""
    if kind == "elementwise":  # PyTorch promotes; a scalar does not count
        dtypes = {_name(tensor) for tensor in [t for t in given if t.dim()] or given}
        return (dtypes.pop() if len(dtypes) == 1 else "float32",)
    looked_at = given if _reads_all(kind) else given[:1]
    return tuple(dict.fromkeys(map(_name, looked_at)))


def _name(tensor: Tensor) -> str:
    return dtype_name(tensor.dtype)


def _kind(kernel: str) -> Kind | None:
    name = _BACKWARD.sub("", kernel)
    name = _KERNELS.get(name, name)
    return kind_of(
        name.replace("legit", "").strip("_").removeprefix("native_").removeprefix("cudnn_")
    )
