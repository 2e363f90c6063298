"""The backward pass of fake tensors on a device that is not here: the nodes that autograd noted, called one by one.

Two things of PyTorch's ask for the device itself. A node notes the stream of its tensors' device as it is made, which a build
without that device cannot say: there it is given the guard of meta tensors, which does nothing, as a fake tensor is stored on
none. And the engine asks for an accelerator, of which there is none: so the nodes are called in the engine's order, and their
gradients are added up and cast as it does.
"""

from __future__ import annotations

import ctypes
import heapq
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["NoGuard", "Places", "guard", "run"]

#: Where `c10/core/DeviceType.h` counts the devices.
_NUMBERS = {"cuda": 1, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15}
_COUNT = 20  # those that every version has

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"


class NoGuard(RuntimeError):
    """Autograd cannot note anything of a device, for this build of PyTorch has no guard for it, and cannot be given one."""


class Places:
    """The places of a function, and which of them the nodes of autograd were made in."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._since: list[int] = []
        self._names: list[str] = []

    @property
    def current(self) -> str:
        """The innermost place that is open; empty outside of all."""
        return self._open[-1] if self._open else ""

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Call what is called inside by a name, and what is computed backward for it."""
        self._open.append(name)
        self._note()
        try:
            yield
        finally:
            self._open.pop()
            self._note()

    def _note(self) -> None:
        self._since.append(torch.autograd._get_sequence_nr())
        self._names.append(self.current)

    def of(self, node: Any) -> str:
        """Return the place in which a node was made."""
        found = bisect_right(self._since, node._sequence_nr()) - 1
        return self._names[found] if found >= 0 else ""


@cache
def guard(device: str) -> None:
    """Give a kind of device that this build of PyTorch does not know a guard that does nothing, for the rest of this process.

    Args:
        device: the kind of device.

    Raises:
        NoGuard: where PyTorch's library does not offer what that takes.
    """
    try:
        library = ctypes.CDLL(str(next(Path(torch.__file__).with_name("lib").glob("libc10.*"))))
        guards = (ctypes.c_void_p * _COUNT).in_dll(library, _REGISTRY)
        register = library[_REGISTER]
    except (StopIteration, OSError, ValueError, AttributeError) as error:
        raise NoGuard(f"this build of PyTorch has no guard for {device}, and cannot be given one: {error}") from error
    register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
    if not guards[_NUMBERS[device]]:
        register(_NUMBERS[device], guards[_NUMBERS["meta"]])


def run(result: Tensor, places: Places) -> None:
    """Compute the gradients of a scalar as the engine does, node by node, in the place that each node was made in.

    Args:
        result: the scalar.
        places: the places, of which the node's is open while it is called.
    """
    waiting: list[tuple[int, int, Any]] = []
    gradients: dict[Any, list[Tensor | None]] = {}

    def send(node: Any, number: int, gradient: Tensor) -> None:
        if node not in gradients:
            gradients[node] = [None] * len(node._input_metadata)
            heapq.heappush(waiting, (-node._sequence_nr(), len(gradients), node))
        with places.named(places.of(node)):
            before = gradients[node][number]
            gradients[node][number] = gradient if before is None else before + gradient

    send(result.grad_fn, 0, torch.ones_like(result))
    while waiting:
        *_, node = heapq.heappop(waiting)
        if hasattr(node, "variable"):  # a leaf
            continue
        with places.named(places.of(node)):
            given = [_as_noted(*each) for each in zip(gradients.pop(node), node._input_metadata, strict=True)]
            found = (node.apply if isinstance(node, torch.autograd.Function) else node)(*given)
            for gradient, (following, number) in zip(found if isinstance(found, tuple) else (found,), node.next_functions, strict=True):
                if gradient is not None and following is not None:
                    send(following, number, gradient)


def _as_noted(gradient: Tensor | None, noted: Any) -> Tensor | None:
    """Return a gradient in the shape and the dtype that the engine makes it of."""
    if gradient is None:
        return None
    summed = gradient if gradient.shape == noted.shape else gradient.sum_to_size(noted.shape)
    return summed.to(noted.dtype)
