"""The backward pass of fake tensors on an absent device: autograd's nodes, called one by one.

PyTorch asks for the device itself in two places. A node notes the stream of its tensors' device
when it is made, which a build without that device cannot name: there the device is given the guard
of meta tensors, which does nothing. And the engine asks for an accelerator: so the nodes are called
here in the engine's order, and gradients are added up and cast as the engine does.
"""

from __future__ import annotations

import ctypes
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.fx.traceback import annotate, reset_grad_fn_seq_nr, set_grad_fn_seq_nr

#: PyTorch's numbers for kinds of device, which never change; and the least count of them.
_NUMBERS = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15}
_COUNT = 16

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"


class NoGuard(RuntimeError):
    """A device for which this build of PyTorch has no guard, and cannot be given one."""


class Inexpressible(RuntimeError):
    """A node of autograd is a function written in Python, which the engine alone can call."""


class Places:
    """The calls that a function is making, and the call in which each node of autograd was made.

    Attributes:
        current: the name of the innermost call; empty outside of all.
        backward: whether the call's gradient is being computed.
        annotated: whether nodes of a graph that is being traced are annotated with their place.
    """

    def __init__(self) -> None:
        self.current, self.backward, self.annotated = "", False, False
        self.forget()

    def forget(self) -> None:
        """Forget the nodes of functions that were called before."""
        self._since, self._names = [0], [""]

    @contextmanager
    def named(self, name: str, *, backward: bool = False) -> Iterator[None]:
        """Make calls inside a place."""
        before, self.current, self.backward = (self.current, self.backward), name, backward
        self._note()
        with annotate({"place": name}) if self.annotated else nullcontext():
            try:
                yield
            finally:
                self.current, self.backward = before
                self._note()

    @contextmanager
    def gradient_of(self, node: Any) -> Iterator[None]:
        """Compute the gradient of a node inside its place.

        A graph takes the annotations of the place, by the node's number.
        """
        set_grad_fn_seq_nr(node._sequence_nr())
        try:
            with self.named(self.of(node), backward=True):
                yield
        finally:
            reset_grad_fn_seq_nr()

    def _note(self) -> None:
        if not self.backward:
            self._since.append(_get_sequence_nr())
            self._names.append(self.current)

    def of(self, node: Any) -> str:
        """Return the place in which a node was made."""
        return self._names[bisect_right(self._since, node._sequence_nr()) - 1]


@cache
def guard(device: str) -> None:
    """Give a device kind unknown to this PyTorch a guard that does nothing, for the whole process.

    Args:
        device: the kind of device.

    Raises:
        NoGuard: where PyTorch's library lacks the symbols for that.
    """
    try:
        library = ctypes.CDLL(str(next(Path(torch.__file__).with_name("lib").glob("libc10.*"))))
        guards = (ctypes.c_void_p * _COUNT).in_dll(library, _REGISTRY)
        register = library[_REGISTER]
    except (StopIteration, OSError, ValueError, AttributeError) as error:
        raise NoGuard(
            f"this build of PyTorch has no guard for {device}, and cannot be given one: {error}"
        ) from error
    register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
    if not guards[_NUMBERS[device]]:
        register(_NUMBERS[device], guards[_NUMBERS["meta"]])


@torch.no_grad()
def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    allow_unused: bool = True,
    *,
    places: Places,
) -> list[Tensor | None]:
    """Return gradients as `torch.autograd.grad` does, each computed in the place of its node.

    Args:
        outputs, inputs, grad_outputs, allow_unused: as in `torch.autograd.grad`.
        places: the places of the nodes.

    Raises:
        Inexpressible: for a node that cannot be called.
    """
    edges = [get_gradient_edge(tensor) for tensor in inputs]
    ends = {edge.node for edge in edges}
    waiting: list[tuple[int, int, Any]] = []
    found: dict[Any, list[Tensor | None]] = {}

    def send(node: Any, number: int, gradient: Tensor) -> None:
        if node not in found:
            found[node] = [None] * len(node._input_metadata)
            if node not in ends:
                heapq.heappush(waiting, (-node._sequence_nr(), len(found), node))
        before = found[node][number]
        with places.gradient_of(node):
            noted = _as_noted(gradient, node._input_metadata[number])
            found[node][number] = noted if before is None else before + noted

    for output, gradient in zip(outputs, grad_outputs, strict=True):
        send(output.grad_fn, output.output_nr, gradient)
    while waiting:
        node = heapq.heappop(waiting)[-1]
        if isinstance(node, BackwardCFunction):
            raise Inexpressible(
                f"{type(node).__name__} is a function of autograd that is written in Python"
            )
        with places.gradient_of(node):
            made = node(*found.pop(node))
        for gradient, (following, number) in zip(
            made if isinstance(made, tuple) else (made,), node.next_functions, strict=True
        ):
            if gradient is not None and following is not None:
                send(following, number, gradient)
    return [found[edge.node][edge.output_nr] if edge.node in found else None for edge in edges]


def _as_noted(gradient: Tensor, noted: Any) -> Tensor:
    """Return a gradient in the shape and dtype that its node noted, as the engine does."""
    summed = (
        gradient
        if gradient.shape == tuple(noted.shape)
        else gradient.sum_to_size(tuple(noted.shape))
    )
    return summed.to(noted.dtype)
