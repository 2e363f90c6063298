"""The exchange of low parameters for their master weights around a step, and what it keeps from one step to the next.

A step of a small network takes some dozens of microseconds, so lists are kept, checked by identity, and handed to operators
for lists. What a step keeps in memory:

- What small parameters were given (2 bytes for each number): if a parameter differs from that, somebody else has changed it.
  `Tensor._version` cannot say so: it does not move with ``parameter.data.clamp_()``. Large parameters are compared with their
  master weights, which are rounded again, a piece at a time.
- Float32 gradients on the CPU, up to `KEPT_GRADIENTS` numbers in all: memory that is new in each step comes from the system, a
  page fault at a time, which costs more than the cast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any

import torch

from unamp.adapter.memory import bytes_differ
from unamp_torch.state import LOW

__all__ = ["Exchange", "follow", "low_parameters"]

#: The most numbers of a parameter of which a copy is kept, and so many of a larger one are compared at a time.
PIECE = 1 << 18

#: The most numbers of an optimizer's gradients whose float32 memory is kept between steps: 64 MiB.
KEPT_GRADIENTS = 1 << 24

# How many have a storage. Where PyTorch does not tell, no gradient is kept: it may be somebody else's by now.
_tensors_of: Any = getattr(torch._C, "_storage_Use_Count", None)


def low_parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Give those of an optimizer's parameters that have master weights, in its order."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.dtype in LOW and parameter.requires_grad:
                yield parameter


def follow(parameter: torch.Tensor, master: torch.Tensor) -> None:
    """Have a master weight take over, number by number, what is not its own rounded value in the parameter."""
    master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter))


class Exchange:
    """One optimizer's low parameters and their master weights, for as long as its groups hold the same parameters.

    Attributes:
        masters: the master weights, as the keys of a dictionary, in which they are found by identity.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, weights: dict[torch.Tensor, torch.Tensor]) -> None:
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        self._all = [parameter for group in self._groups for parameter in group]
        self._traits = _traits(self._all)
        self._low = list(dict.fromkeys(low_parameters(optimizer)))
        self._wide = [weights[parameter] for parameter in self._low]
        self.masters = dict.fromkeys(self._wide)
        inward, outward = dict(zip(self._low, self._wide, strict=True)), dict(zip(self._wide, self._low, strict=True))
        self._inside = [[inward.get(parameter, parameter) for parameter in group] for group in self._groups]
        self._keys_in, self._keys_out = _Keys(inward), _Keys(outward)
        self._given = _Given(self._low, self._wide)
        self._kept = _KeptGradients(self._wide)
        self._gradients: list[torch.Tensor | None] = []
        self._versions: list[int] = []

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer's groups and their parameters are still what they were."""
        return _same_lists(optimizer, self._groups) and _traits(self._all) == self._traits

    @torch.no_grad()
    def put_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the master weights, with float32 gradients, where the low parameters are."""
        self._given.follow_changes()
        self._gradients = [parameter.grad for parameter in self._low]
        self._kept.widen(self._gradients)
        self._versions = [master._version for master in self._wide]
        for group, inside in zip(optimizer.param_groups, self._inside, strict=True):
            group["params"][:] = inside  # in place: optimizers hold the lists themselves, too
        self._keys_in.replace(optimizer.state)

    @torch.no_grad()
    def take_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the low parameters back, and have them take over the rounded master weights."""
        if _same_lists(optimizer, self._inside):
            for group, outside in zip(optimizer.param_groups, self._groups, strict=True):
                group["params"][:] = outside
        else:  # a hook of the step has changed the groups
            outward = dict(zip(self._wide, self._low, strict=True))
            for group in optimizer.param_groups:
                group["params"][:] = [outward.get(parameter, parameter) for parameter in group["params"]]
        self._keys_out.replace(optimizer.state)
        gradients, self._gradients = self._gradients, []
        untouched = set()
        for place, (master, gradient) in enumerate(zip(self._wide, gradients, strict=True)):
            if master.grad is not None:
                master.grad = None
            elif gradient is not None:  # cleared by a hook of the step
                self._low[place].grad = None
            elif master._version == self._versions[place]:
                untouched.add(place)  # a graph that needs the parameter as it was can still be used
        self._given.give(untouched)


class _Given:
    """Gives low parameters their rounded values, and notices where they are not what they were given."""

    def __init__(self, low: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> None:
        self._low, self._wide = low, wide
        plain = [_on_cpu(parameter) and _on_cpu(master) for parameter, master in zip(low, wide, strict=True)]
        self._small = [n for n, each in enumerate(low) if plain[n] and each.numel() <= PIECE]
        self._large = [n for n, each in enumerate(low) if plain[n] and each.numel() > PIECE]
        # On a GPU nothing is compared: the answer would have to be waited for.
        self._unseen = [n for n in range(len(low)) if not plain[n]]
        self._without_copy = sorted(self._large + self._unseen)
        with torch.no_grad():
            # Of the master weights, so that what came before this is noticed too.
            self._copies = [wide[n].detach().to(low[n].dtype) for n in self._small]
        self._small_low, self._small_wide = [low[n] for n in self._small], [wide[n] for n in self._small]
        self._compared = [(low[n], copy.data_ptr(), copy.nbytes) for n, copy in zip(self._small, self._copies, strict=True)]

    def follow_changes(self) -> None:
        """Have master weights follow where somebody else has changed their parameters."""
        for n, (parameter, copy, size) in enumerate(self._compared):
            if not _on_cpu(parameter) or parameter.nbytes != size or bytes_differ(parameter.data_ptr(), copy, size):
                follow(parameter, self._small_wide[n])
                self._copies[n].copy_(parameter)
        for n in self._large:
            if _differs(self._low[n], self._wide[n]):
                follow(self._low[n], self._wide[n])
        for n in self._unseen:
            follow(self._low[n], self._wide[n])

    def give(self, untouched: set[int]) -> None:
        """Round the master weights into the parameters, but for those at some places."""
        low, wide, copies, rest = self._small_low, self._small_wide, self._copies, self._without_copy
        if untouched:
            stepped = [place for place, n in enumerate(self._small) if n not in untouched]
            low, wide, copies = ([each[place] for place in stepped] for each in (low, wide, copies))
            rest = [n for n in rest if n not in untouched]
        if low:
            torch._foreach_copy_(copies, wide)  # the cast, once
            torch._foreach_copy_(low, copies)
        if rest:
            torch._foreach_copy_([self._low[n] for n in rest], [self._wide[n] for n in rest])


def _on_cpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers lie in the CPU's memory, one after the other."""
    return tensor.is_cpu and tensor.is_contiguous()


def _differs(parameter: torch.Tensor, master: torch.Tensor) -> bool:
    """Return whether a large parameter is not its rounded master weight, to the bit."""
    if not (_on_cpu(parameter) and _on_cpu(master)) or parameter.numel() != master.numel():
        return True
    numbers, place = master.detach().view(-1), parameter.data_ptr()
    rounded = torch.empty(PIECE, dtype=parameter.dtype)
    for start in range(0, numbers.numel(), PIECE):
        piece = numbers[start : start + PIECE]
        size = piece.numel()
        if bytes_differ(place + 2 * start, rounded[:size].copy_(piece).data_ptr(), 2 * size):
            return True
    return False


class _KeptGradients:
    """Float32 gradients of master weights, whose memory is used again in the next step, unless somebody has kept one."""

    def __init__(self, masters: Sequence[torch.Tensor]) -> None:
        self._masters = masters
        tells = _tensors_of is not None and hasattr(torch.Tensor, "_use_count")
        keeps = tells and sum(master.numel() for master in masters if master.is_cpu) <= KEPT_GRADIENTS
        self._keeps = [keeps and _on_cpu(master) for master in masters]
        self._buffers: list[torch.Tensor | None] = [None] * len(masters)
        self._storages: list[Any] = [None] * len(masters)  # which live as long, so that they can be asked

    def widen(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Give master weights the gradients of their parameters, in float32."""
        wide, low = [], []
        for n, (gradient, master) in enumerate(zip(gradients, self._masters, strict=True)):
            if gradient is None or gradient.dtype not in LOW:
                master.grad = gradient
            elif gradient.layout is not torch.strided:
                master.grad = gradient.float()
            else:
                master.grad = into = self._buffer(n, gradient)
                wide.append(into)
                low.append(gradient)
        if wide:
            torch._foreach_copy_(wide, low)

    def _buffer(self, n: int, gradient: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers[n]
        if (
            buffer is not None
            and gradient.is_contiguous()
            and sys.getrefcount(buffer) == 3  # the list, `buffer` and this call
            and buffer._use_count() == 1
            and _tensors_of(self._storages[n]._cdata) == 2  # the buffer, and the storage that is asked
        ):
            return buffer
        made = torch.empty_like(gradient, dtype=torch.float32)
        if self._keeps[n] and _on_cpu(made):
            self._buffers[n], self._storages[n] = made, made.untyped_storage()
        return made


class _Keys:
    """Exchanges the keys of an optimizer's state, whose dictionary stays the same object."""

    def __init__(self, names: dict[torch.Tensor, torch.Tensor]) -> None:
        self._names = names
        self._old: list[Any] = []
        self._new: list[Any] = []

    def replace(self, state: dict[Any, Any]) -> None:
        """Put the values of a state under the other keys."""
        keys = list(state)
        if len(keys) != len(self._old) or not all(map(is_, keys, self._old)):
            self._old, self._new = keys, [self._names.get(key, key) for key in keys]
        values = list(state.values())
        state.clear()
        state.update(zip(self._new, values, strict=True))


def _same_lists(optimizer: torch.optim.Optimizer, known: list[list[torch.Tensor]]) -> bool:
    groups = optimizer.param_groups
    return len(groups) == len(known) and all(
        len(group["params"]) == len(each) and all(map(is_, group["params"], each))
        for group, each in zip(groups, known, strict=True)
    )


def _traits(parameters: Sequence[torch.Tensor]) -> list[Any]:
    """Return what makes some of these parameters low ones that are trained."""
    return [(parameter.dtype, parameter.requires_grad) for parameter in parameters]
