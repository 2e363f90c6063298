"""The exchange of low parameters for their master weights around a step, and what stays the same from one step to the next.

A step of a small network takes some dozens of microseconds, so lists are kept and checked by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from unamp_torch.compiled import library
from unamp_torch.master_casts import Casts
from unamp_torch.state import LOW

__all__ = ["Exchange", "follow", "low_parameters"]


def low_parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer that have master weights, in its order."""
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
        self._low = tuple(dict.fromkeys(low_parameters(optimizer)))
        self._wide = tuple(weights[parameter] for parameter in self._low)
        self.masters = dict.fromkeys(self._wide)
        inward, outward = dict(zip(self._low, self._wide, strict=True)), dict(zip(self._wide, self._low, strict=True))
        self._inside = [[inward.get(parameter, parameter) for parameter in group] for group in self._groups]
        self._keys_in, self._keys_out = _Keys(inward), _Keys(outward)
        self._casts = (Casts if library is None else library.Casts)(self._low, self._wide)

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer's groups and their parameters are still what they were."""
        return _same_lists(optimizer, self._groups) and _traits(self._all) == self._traits

    def put_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the master weights, with float32 gradients, where the low parameters are."""
        if changed := self._casts.changed():
            with torch.no_grad():
                for place in changed:
                    follow(self._low[place], self._wide[place])
        self._casts.widen()
        for group, inside in zip(optimizer.param_groups, self._inside, strict=True):
            group["params"][:] = inside  # in place: optimizers hold the lists themselves, too
        self._keys_in.replace(optimizer.state)

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
        self._casts.round()


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
    """Return the function that makes some of these parameters low ones that are trained."""
    return list(map(_dtype_and_training, parameters))


_dtype_and_training = attrgetter("dtype", "requires_grad")
