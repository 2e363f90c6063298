"""Casts between low parameters and their master weights, all of an optimizer's at a time; `compiled/masters.h` has them in C++.

What is kept in memory from one step to the next:

- What parameters were given (2 bytes for each number): if a parameter differs from that, somebody else has changed it.
  `Tensor._version` cannot say so: it does not move with ``parameter.data.clamp_()``. Parameters above `COPIED`
  numbers are compared with their master weights, which are rounded again, a piece at a time.
- Float32 gradients on the CPU, up to `KEPT_GRADIENTS` numbers in all: memory that is new in each step comes from the system, a
  page fault at a time, which costs more than the cast.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from unamp.adapter.memory import bytes_differ
from unamp_torch.state import LOW

#: The most numbers of a parameter of which a copy is kept.
COPIED = 1 << 22

#: So many numbers of a larger one are compared at a time.
PIECE = 1 << 18

#: The most numbers of an optimizer's gradients whose float32 memory is kept between steps: 64 MiB.
KEPT_GRADIENTS = 1 << 24

_tensors_of = torch._C._storage_Use_Count  # how many tensors have a storage


class Casts:
    """The casts of some low parameters."""

    def __init__(self, low: tuple[torch.Tensor, ...], wide: tuple[torch.Tensor, ...]) -> None:
        self._low, self._wide = low, wide
        count = len(low)
        plain = [_on_cpu(parameter) and _on_cpu(master) for parameter, master in zip(low, wide, strict=True)]
        self._large = [n for n in range(count) if plain[n] and low[n].numel() > COPIED]
        # On a GPU nothing is compared: the answer would have to be waited for.
        self._unseen = [n for n in range(count) if not plain[n]]
        self._without_copy = sorted(self._large + self._unseen)
        self._small = [n for n in range(count) if plain[n] and low[n].numel() <= COPIED]
        # Of the master weights, so that what came before this is noticed too.
        self._copies = [wide[n].detach().to(low[n].dtype) for n in self._small]
        self._small_low, self._small_wide = [low[n] for n in self._small], [wide[n] for n in self._small]
        self._compared = [(low[n], copy.data_ptr(), copy.nbytes) for n, copy in zip(self._small, self._copies, strict=True)]
        keeps = sum(master.numel() for master in wide if master.is_cpu) <= KEPT_GRADIENTS
        self._keeps = [keeps and _on_cpu(master) for master in wide]
        self._kept: list[torch.Tensor | None] = [None] * count
        self._storages = [0] * count  # their storages, by the number that PyTorch takes for them,
        self._held: list[Any] = [None] * count  # which live as long
        self._graded: list[bool] = []
        self._versions: list[int] = []

    def changed(self) -> list[int]:
        """Return the places of parameters that somebody else may have changed since they were given their values."""
        found = []
        for n, (parameter, copy, size) in enumerate(self._compared):
            if (
                not parameter.is_cpu
                or not parameter.is_contiguous()
                or parameter.nbytes != size
                or bytes_differ(parameter.data_ptr(), copy, size)
            ):
                self._copies[n].copy_(parameter.detach())
                found.append(self._small[n])
        found += (n for n in self._large if _differs(self._low[n], self._wide[n]))
        return found + self._unseen

    @torch.no_grad()
    def widen(self) -> None:
        """Give master weights the gradients of their parameters, in float32."""
        wide, low = [], []
        gradients = [parameter.grad for parameter in self._low]
        for n, (gradient, master) in enumerate(zip(gradients, self._wide, strict=True)):
            if gradient is None or gradient.dtype not in LOW:
                master.grad = gradient
            elif gradient.layout is not torch.strided:
                master.grad = gradient.float()
            else:
                kept = self._kept[n]
                if (
                    kept is None
                    or not gradient.is_contiguous()
                    or sys.getrefcount(kept) != 3  # the list, `kept` and this call: nobody else has it,
                    or kept._use_count() != 1  # type: ignore[attr-defined]  # nor an autograd graph,
                    or _tensors_of(self._storages[n]) != 2  # nor its memory, but for what is asked here
                ):
                    kept = self._new_gradient(n, gradient)
                master.grad = kept
                wide.append(kept)
                low.append(gradient)
        if wide:
            torch._foreach_copy_(wide, low)
        self._graded = [gradient is not None for gradient in gradients]
        self._versions = [master._version for master in self._wide]

    def _new_gradient(self, n: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a float32 gradient, which is kept for the next step where it can be."""
        made = torch.empty_like(gradient, dtype=torch.float32)
        if self._keeps[n] and _on_cpu(made):
            storage = made.untyped_storage()
            self._kept[n], self._storages[n], self._held[n] = made, storage._cdata, storage
        return made

    @torch.no_grad()
    def round(self) -> None:
        """Take the gradients back, and round the master weights into the parameters."""
        untouched = set()
        for n, master in enumerate(self._wide):
            if master.grad is not None:
                master.grad = None
            elif self._graded[n]:  # cleared by a hook of the step
                self._low[n].grad = None
            elif master._version == self._versions[n]:
                untouched.add(n)  # a graph that needs the parameter as it was can still be used
        low, wide, copies, rest = self._small_low, self._small_wide, self._copies, self._without_copy
        if untouched:
            stepped = [at for at, n in enumerate(self._small) if n not in untouched]
            low, wide, copies = ([each[at] for at in stepped] for each in (low, wide, copies))
            rest = [n for n in rest if n not in untouched]
        if low:
            torch._foreach_copy_(copies, wide)  # the cast, once
            torch._foreach_copy_(low, copies)
        if rest:
            torch._foreach_copy_([self._low[n] for n in rest], [self._wide[n] for n in rest])


def _on_cpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers lie in the CPU's memory, one after the other."""
    return type(tensor.data) is torch.Tensor and tensor.is_cpu and tensor.is_contiguous()


def _differs(parameter: torch.Tensor, master: torch.Tensor) -> bool:
    """Return whether a large parameter is not its rounded master weight, to the bit."""
    if not (_on_cpu(parameter) and _on_cpu(master)) or parameter.nbytes * 2 != master.nbytes:
        return True
    numbers, place = master.detach().view(-1), parameter.data_ptr()
    rounded = torch.empty(PIECE, dtype=parameter.dtype)
    for start in range(0, numbers.numel(), PIECE):
        piece = numbers[start : start + PIECE]
        size = piece.numel()
        if bytes_differ(place + 2 * start, rounded[:size].copy_(piece).data_ptr(), 2 * size):
            return True
    return False
