"""Casts between low parameters and their master weights, all of an optimizer's at a time.

The same in C++ is `compiled/masters.h`.

Two things are kept in memory from one step to the next:

- The numbers that parameters were given (2 bytes for each): if a parameter differs from them,
  somebody else has changed it. `Tensor._version` cannot tell: ``parameter.data.clamp_()`` leaves
  it as it is.
- Float32 gradients on the CPU, up to `KEPT_GRADIENTS` numbers in all: memory that is new in each
  step comes from the system, a page fault at a time, which costs more than the cast.
"""

from __future__ import annotations

import torch

from unamp.adapter.memory import bytes_differ
from unamp_torch.state import LOW

#: The most numbers in an optimizer's gradients for which float32 memory is kept: 64 MiB.
KEPT_GRADIENTS = 1 << 24

# the number of references to a storage, PyTorch's own objects for it included
_holders = torch._C._storage_Use_Count


class Casts:
    """The casts of some low parameters."""

    def __init__(self, low: tuple[torch.Tensor, ...], wide: tuple[torch.Tensor, ...]) -> None:
        self._pairs = list(zip(low, wide, strict=True))
        # Copies of the master weights, so that changes before this are noticed, too. None where
        # nothing is compared: comparing on a GPU would wait for it.
        self._copies = [
            master.detach().to(parameter.dtype) if _on_cpu(parameter) and _on_cpu(master) else None
            for parameter, master in self._pairs
        ]
        self._keeps = sum(master.numel() for master in wide if master.is_cpu) <= KEPT_GRADIENTS
        self._kept: list[torch.UntypedStorage | None] = [None] * len(low)
        self._graded: list[bool] = []
        self._versions: list[int] = []

    def changed(self) -> list[int]:
        """Return the places of parameters that others may have changed since they were set."""
        return [
            n
            for n, ((parameter, _), copy) in enumerate(zip(self._pairs, self._copies, strict=True))
            if copy is None
            or not (
                parameter.is_cpu and parameter.is_contiguous() and parameter.nbytes == copy.nbytes
            )
            or bytes_differ(parameter.data_ptr(), copy.data_ptr(), copy.nbytes)
        ]

    @torch.no_grad()
    def widen(self) -> None:
        """Give master weights the gradients of their parameters, in float32."""
        wide, low = [], []
        for n, (parameter, master) in enumerate(self._pairs):
            gradient = parameter.grad
            if gradient is None or gradient.dtype not in LOW:
                master.grad = gradient
            elif gradient.layout is not torch.strided:
                master.grad = gradient.float()
            else:
                master.grad = made = self._memory(n, gradient)
                wide.append(made)
                low.append(gradient)
        if wide:
            torch._foreach_copy_(wide, low)
        self._graded = [parameter.grad is not None for parameter, _ in self._pairs]
        self._versions = [master._version for _, master in self._pairs]

    def _memory(self, n: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return a tensor for a float32 gradient.

        Its memory is that of the last step's gradient, where nobody refers to that any more.
        """
        kept = self._kept[n]
        if kept is not None and gradient.is_contiguous() and _holders(kept._cdata) == 1:
            return torch.empty(0, dtype=torch.float32).set_(
                kept, 0, gradient.shape, gradient.stride()
            )
        made = torch.empty_like(gradient, dtype=torch.float32)
        if self._keeps and _on_cpu(made):
            self._kept[n] = made.untyped_storage()
        return made

    @torch.no_grad()
    def round(self) -> None:
        """Take the gradients back, and round the master weights into the parameters."""
        low: list[torch.Tensor] = []
        rounded: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        wide: list[torch.Tensor] = []
        for n, (parameter, master) in enumerate(self._pairs):
            if master.grad is not None:
                master.grad = None
            elif self._graded[n]:  # cleared by a hook of the step
                parameter.grad = None
            elif master._version == self._versions[n]:
                continue  # not written to, so that graphs which need the parameter stay valid
            low.append(parameter)
            if (copy := self._copies[n]) is not None:  # the cast, once
                copies.append(copy)
                wide.append(master)
            rounded.append(master if copy is None else copy)
        if copies:
            torch._foreach_copy_(copies, wide)
        if low:
            torch._foreach_copy_(low, rounded)


def _on_cpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers lie in the CPU's memory, one after the other."""
    return type(tensor.data) is torch.Tensor and tensor.is_cpu and tensor.is_contiguous()
