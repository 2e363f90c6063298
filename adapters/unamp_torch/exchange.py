"""The exchange of low parameters for their master weights around a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import is_

import torch

from unamp_torch.compiled import library
from unamp_torch.master_casts import Casts
from unamp_torch.state import LOW


def low_parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer that have master weights, in its order."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.dtype in LOW and parameter.requires_grad:
                yield parameter


def follow(parameter: torch.Tensor, master: torch.Tensor) -> None:
    """Copy to a master weight those of its parameter's numbers that somebody else has changed."""
    master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter))


class Exchange:
    """Some low parameters of an optimizer, and their master weights.

    Attributes:
        low: the low parameters by their master weights, which are found by identity.
    """

    def __init__(
        self, low: tuple[torch.Tensor, ...], weights: Mapping[torch.Tensor, torch.Tensor]
    ) -> None:
        self._masters = {parameter: weights[parameter] for parameter in low}
        self.low = {master: parameter for parameter, master in self._masters.items()}
        self._casts: Casts = (Casts if library is None else library.Casts)(low, tuple(self.low))

    def is_of(self, low: tuple[torch.Tensor, ...]) -> bool:
        """Return whether this is the exchange of the parameters `low`."""
        return len(low) == len(self._masters) and all(map(is_, low, self._masters))

    def put_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the master weights, with float32 gradients, in the place of the low parameters."""
        if changed := self._casts.changed():
            pairs = list(self._masters.items())
            with torch.no_grad():
                for place in changed:
                    follow(*pairs[place])
        self._casts.widen()
        _replace(optimizer, self._masters)

    def take_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the low parameters back, with the numbers of the master weights, rounded."""
        _replace(optimizer, self.low)
        self._casts.round()


def _replace(optimizer: torch.optim.Optimizer, others: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Replace parameters by others: in the lists of the groups, and as keys of the state."""
    for group in optimizer.param_groups:
        # in place: optimizers refer to the lists elsewhere, too
        group["params"][:] = [others.get(each, each) for each in group["params"]]
    state = optimizer.state
    replaced = [(others.get(key, key), value) for key, value in state.items()]
    state.clear()
    state.update(replaced)
