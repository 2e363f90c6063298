"""Optimizers that step the float32 master weights of low parameters.

An optimizer is decorated by giving it a class derived from its own. During a step, a master weight
takes the place of each low parameter: in the lists of the groups, and as the key of its state. So
the optimizer's own step runs as it was written, on float32 weights, gradients and state; then the
low parameters take over the rounded values.

(If the memory of a parameter were exchanged by `Tensor.data` instead, for memory of another dtype,
PyTorch would forget where its gradients are added up, and with that the hooks which
`DistributedDataParallel` has there.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from unamp._function_types import Keywords
from unamp.policy import Policy
from unamp.regions import current_policy, policy_region
from unamp_torch.exchange import Exchange, follow, low_parameters
from unamp_torch.state import LOW

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict

R = TypeVar("R")

_OFF = Policy(enabled=False)

#: The key of a parameter's master weight in its state in an optimizer's ``state_dict``.
MASTER_WEIGHT = "master_weight"


def masters_of(optimizer: torch.optim.Optimizer) -> Masters | None:
    """Return a decorated optimizer's master weights; None for any other."""
    return getattr(optimizer, "_unamp_masters", None)


class Masters:
    """An optimizer's float32 master weights, and their exchange with the low parameters.

    Parameters that come to the optimizer later, or that are made trainable later, get a master
    weight at their first step.

    Args:
        weights: the master weight of each parameter, a parameter itself.
        keep_gradients: whether gradients are added up in float32.
    """

    def __init__(self, weights: dict[torch.Tensor, torch.Tensor], keep_gradients: bool) -> None:
        self.weights = weights
        self._keep_gradients = keep_gradients
        # the exchange of the last step, whose memory serves the next one, too
        self._exchange: Exchange | None = None
        # the low parameters by their master weights, during a step
        self._in_place: Mapping[torch.Tensor, torch.Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_exchange": None}  # a copy makes its own

    @contextmanager
    def exchanged(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Put master weights with float32 gradients in the place of low parameters while open.

        No policy is in force meanwhile.
        """
        if self._in_place:
            yield
            return
        with _under(_OFF if current_policy() is not None else None):
            self._put_in(optimizer)
            try:
                yield
            finally:
                self._take_out(optimizer)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[..., R],
        args: tuple[object, ...],
        kwargs: Keywords,
    ) -> R:
        """Take an optimizer's own step on the master weights."""
        policy = current_policy()
        with self.exchanged(optimizer):
            return step(
                *(self._for_step(optimizer, each, policy) for each in args),
                **{name: self._for_step(optimizer, each, policy) for name, each in kwargs.items()},
            )

    def _for_step(
        self, optimizer: torch.optim.Optimizer, argument: object, policy: Policy | None
    ) -> object:
        """Return an argument of a step.

        A closure, which computes the loss, sees low parameters and the caller's policy.
        """
        if not callable(argument):
            return argument

        @functools.wraps(argument)
        def closure(*args: Any, **kwargs: Any) -> object:
            self._take_out(optimizer)
            try:
                with _under(policy):
                    return argument(*args, **kwargs)
            finally:
                self._put_in(optimizer)

        return closure

    def widen_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn low gradients into float32 ones, which low parameters then hold."""
        for parameter in low_parameters(optimizer):
            if parameter.grad is not None and parameter.grad.dtype in LOW:
                # None allows any dtype; gradients that are added to it stay low, as before
                parameter.grad_dtype = None
                parameter.grad = parameter.grad.float()

    def narrow_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo `widen_gradients`, for gradients that are not cleared but set to zero."""
        for parameter in low_parameters(optimizer):
            if parameter.grad is not None and parameter.grad_dtype is None:
                parameter.grad = parameter.grad.to(parameter.dtype)

    def mark(self) -> None:
        """Set the parameters' gradients to be added up in float32, where this is wanted.

        Copied and unpickled parameters have lost the setting.
        """
        if self._keep_gradients:
            for parameter in self.weights:
                if parameter.grad is None:
                    parameter.grad_dtype = torch.float32

    @torch.no_grad()
    def saved(self, optimizer: torch.optim.Optimizer, state_dict: StateDict) -> StateDict:
        """Return an optimizer's ``state_dict`` with the master weights."""
        state = dict(state_dict["state"])
        for place, parameter in _places(optimizer, state_dict):
            weight = parameter if parameter in self._in_place else self.weights.get(parameter)
            if weight is None:
                continue
            if weight is not parameter:
                follow(parameter, weight)
            state[place] = {**state.get(place, {}), MASTER_WEIGHT: weight.detach()}
        return {**state_dict, "state": state}

    def take(
        self,
        found: dict[torch.Tensor, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        state_dict: StateDict,
    ) -> StateDict:
        """Return an optimizer's ``state_dict`` without master weights, which are added to `found`.

        Raises:
            ValueError: for one of another shape.
        """
        state = dict(state_dict["state"])
        for place, parameter in _places(optimizer, state_dict):
            own = state.get(place)
            if not isinstance(own, dict) or MASTER_WEIGHT not in own:
                continue
            weight = found[parameter] = own[MASTER_WEIGHT]
            if weight.shape != parameter.shape:
                raise ValueError(
                    f"the loaded master weight of parameter {place} "
                    f"has the shape {tuple(weight.shape)}, "
                    f"the parameter has {tuple(parameter.shape)}"
                )
            # An optimizer takes a state that is not empty for one that it has made.
            state[place] = {key: value for key, value in own.items() if key != MASTER_WEIGHT}
            if not state[place]:
                del state[place]
        return {**state_dict, "state": state}

    @torch.no_grad()
    def load(self, loaded: dict[torch.Tensor, torch.Tensor]) -> None:
        """Copy loaded master weights to those in place; low parameters follow when they return."""
        for parameter, weight in loaded.items():
            if parameter in self._in_place:
                parameter.copy_(weight)
            elif parameter in self.weights:  # frozen now
                self.weights[parameter].copy_(weight)
                parameter.copy_(weight)

    def _put_in(self, optimizer: torch.optim.Optimizer) -> None:
        low, exchange = tuple(dict.fromkeys(low_parameters(optimizer))), self._exchange
        if exchange is None or not exchange.is_of(low):
            for parameter in low:
                if parameter not in self.weights:
                    self.weights[parameter] = master_weight(parameter, parameter.detach().float())
            exchange = self._exchange = Exchange(low, self.weights)
        exchange.put_in(optimizer)
        self._in_place = exchange.low

    def _take_out(self, optimizer: torch.optim.Optimizer) -> None:
        if self._in_place and self._exchange is not None:
            self._in_place = {}
            self._exchange.take_out(optimizer)


def master_weight(parameter: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a parameter's master weight, a parameter itself, with the numbers of `weight`."""
    made = torch.nn.Parameter(weight)
    vars(made).update(vars(parameter))  # attributes by which optimizers treat single parameters
    return made


def _places(
    optimizer: torch.optim.Optimizer, state_dict: StateDict
) -> Iterator[tuple[Hashable, torch.Tensor]]:
    """Yield the parameters, each after its number in a ``state_dict``."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    return zip(
        saved,
        chain.from_iterable(group["params"] for group in optimizer.param_groups),
        strict=False,
    )


def _under(policy: Policy | None) -> AbstractContextManager[object]:
    return nullcontext() if policy is None else policy_region(policy, framework="torch")
