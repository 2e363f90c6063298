"""Optimizers that step the float32 master weights of low parameters.

An optimizer is decorated by giving it a class derived from its own. While that takes its step, a master weight stands in the
place of each low parameter: in the lists of the groups, and as the key of its state. So the optimizer's own step runs as it
was written, on float32 weights, gradients and state; then the low parameters take over the rounded values.

(Exchanging the memory of a parameter by `Tensor.data` instead, for one of another dtype, would have PyTorch forget where its
gradients are added up, and with it the hooks that `DistributedDataParallel` has there.)
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch

from unamp.policy import Policy
from unamp.regions import current_policy, policy_region

__all__ = ["LOW", "MASTER_WEIGHT", "Masters", "adopt", "masters_of"]

LOW = (torch.float16, torch.bfloat16)

_OFF = Policy(enabled=False)

#: What a parameter's master weight is called in its state in an optimizer's ``state_dict``.
MASTER_WEIGHT = "master_weight"


def adopt(optimizer: Any, weights: dict[torch.Tensor, torch.Tensor], keep_gradients: bool) -> None:
    """Have an optimizer step master weights.

    Args:
        optimizer: the optimizer, which is another class's from here on.
        weights: what parameters were before they became low.
        keep_gradients: whether their gradients are added up in float32.
    """
    own = {parameter: weights[parameter] for parameter in _low_parameters(optimizer) if parameter in weights}
    optimizer._unamp_masters = Masters({p: _twin(p, weight) for p, weight in own.items()}, keep_gradients)
    optimizer.__class__ = _derived(type(optimizer))
    if (step := vars(optimizer).get("step")) is not None:  # a schedule's, made before, which goes past the class
        optimizer.step = _within(weakref.ref(optimizer), step)


def masters_of(optimizer: torch.optim.Optimizer) -> Masters | None:
    """A decorated optimizer's master weights; None for any other."""
    return getattr(optimizer, "_unamp_masters", None)


class Masters:
    """An optimizer's float32 master weights, and their exchange with the low parameters.

    Parameters that come to the optimizer later, or that are made trainable later, get one at their first step.

    Args:
        weights: the master weight of each parameter, a parameter itself.
        keep_gradients: whether gradients are added up in float32.
    """

    def __init__(self, weights: dict[torch.Tensor, torch.Tensor], keep_gradients: bool) -> None:
        self.weights = weights
        self._keep_gradients = keep_gradients
        self._exchanged: dict[torch.Tensor, _Exchange] | None = None  # by the master weights, while those are in place

    @contextmanager
    def exchanged(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, master weights with float32 gradients stand in for low parameters, and no policy is in force."""
        if self._exchanged is not None:
            yield
            return
        with _under(_OFF if current_policy() is not None else None):
            self._exchange(optimizer)
            try:
                yield
            finally:
                self._give_back(optimizer)

    def step(self, optimizer: Any, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Take an optimizer's own step."""
        policy = current_policy()
        with self.exchanged(optimizer):
            return step(
                *(self._outside(optimizer, each, policy) for each in args),
                **{name: self._outside(optimizer, each, policy) for name, each in kwargs.items()},
            )

    def _outside(self, optimizer: torch.optim.Optimizer, argument: Any, policy: Policy | None) -> Any:
        """An argument of a step; a closure, which computes the loss anew, sees the low parameters, and the caller's policy."""
        if not callable(argument):
            return argument

        @functools.wraps(argument)
        def closure(*args: Any, **kwargs: Any) -> Any:
            self._give_back(optimizer)
            try:
                with _under(policy):
                    return argument(*args, **kwargs)
            finally:
                self._exchange(optimizer)

        return closure

    def widen_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn low gradients into float32 ones, which low parameters then hold."""
        for parameter in _low_parameters(optimizer):
            if parameter.grad is not None and parameter.grad.dtype in LOW:
                parameter.grad_dtype = None  # any; it stays so, and what is added up is low as before
                parameter.grad = parameter.grad.float()

    def narrow_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo `widen_gradients`, for gradients that are not cleared but set to zero."""
        for parameter in _low_parameters(optimizer):
            if parameter.grad is not None and parameter.grad_dtype is None:
                parameter.grad = parameter.grad.to(parameter.dtype)

    def mark(self) -> None:
        """Have gradients added up in float32, where they are to be: copied and unpickled parameters have forgotten that."""
        if self._keep_gradients:
            for parameter in self.weights:
                if parameter.grad is None:
                    parameter.grad_dtype = torch.float32

    def saved(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """An optimizer's ``state_dict``, with the master weights."""
        state = dict(state_dict["state"])
        for place, parameter in _places(optimizer, state_dict):
            weight = parameter if parameter in (self._exchanged or ()) else self._current(parameter)
            if weight is not None:
                state[place] = {**state.get(place, {}), MASTER_WEIGHT: weight.detach()}
        return {**state_dict, "state": state}

    def take(
        self, found: dict[torch.Tensor, torch.Tensor], optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """An optimizer's ``state_dict`` without the master weights, which are added to `found`.

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
                    f"the loaded master weight of parameter {place} has the shape {tuple(weight.shape)}, "
                    f"the parameter has {tuple(parameter.shape)}"
                )
            # An optimizer takes a state that is not empty for one that it has made.
            state[place] = {key: value for key, value in own.items() if key != MASTER_WEIGHT}
            if not state[place]:
                del state[place]
        return {**state_dict, "state": state}

    @torch.no_grad()
    def load(self, loaded: dict[torch.Tensor, torch.Tensor]) -> None:
        """Take master weights over, while they are in place; the low parameters will follow."""
        for parameter, weight in loaded.items():
            if parameter in (self._exchanged or ()):
                parameter.copy_(weight)
            elif parameter in self.weights:  # one that is frozen now
                self.weights[parameter].copy_(weight)
                parameter.copy_(weight)

    def _exchange(self, optimizer: torch.optim.Optimizer) -> None:
        exchanges = [_Exchange(parameter, self._follow(parameter)) for parameter in _low_parameters(optimizer)]
        self._exchanged = {each.master: each for each in exchanges}
        _replace(optimizer, {each.parameter: each.master for each in exchanges})

    def _give_back(self, optimizer: torch.optim.Optimizer) -> None:
        exchanged, self._exchanged = self._exchanged or {}, None
        _replace(optimizer, {master: each.parameter for master, each in exchanged.items()})
        for each in exchanged.values():
            each.finish()

    def _follow(self, parameter: torch.Tensor) -> torch.Tensor:
        if parameter not in self.weights:
            self.weights[parameter] = _twin(parameter, parameter.detach().float())
        return self._current(parameter)  # type: ignore[return-value]

    @torch.no_grad()
    def _current(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """A parameter's master weight, where it has one; it follows where somebody else has changed the parameter since."""
        master = self.weights.get(parameter)
        if master is not None:
            rounded = master.to(parameter.dtype)
            # On a GPU nothing is asked: the answer would have to be waited for.
            if parameter.device.type != "cpu" or not _equal(rounded, parameter):
                master.copy_(torch.where(rounded == parameter, master, parameter))
        return master


class _Exchange:
    """One low parameter whose master weight stands in its place."""

    def __init__(self, parameter: torch.Tensor, master: torch.Tensor) -> None:
        self.parameter, self.master = parameter, master
        gradient = parameter.grad
        self._gradient = master.grad = gradient.float() if gradient is not None and gradient.dtype in LOW else gradient
        self._version = master._version

    @torch.no_grad()
    def finish(self) -> None:
        """Round the master weight into the parameter."""
        if self.master.grad is None:
            if self._gradient is not None:  # cleared by a hook of the step
                self.parameter.grad = None
            elif self.master._version == self._version:
                return  # a graph that needs the parameter as it was can still be used
        self.parameter.copy_(self.master)
        self.master.grad = None


class _Decorated:
    """What stands in front of an optimizer's own class."""

    _unamp_class: type[torch.optim.Optimizer]  #: the optimizer's own class
    _unamp_masters: Masters

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._unamp_masters.step(self, super().step, args, kwargs)  # type: ignore[misc]

    step.hooked = True  # type: ignore[attr-defined]  # the own class's step calls the hooks; PyTorch would call them here too

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        self._unamp_masters.narrow_gradients(self)

    def state_dict(self: Any) -> dict[str, Any]:
        # PyTorch calls it first, so what users hook sees the master weights.
        handle = self.register_state_dict_post_hook(self._unamp_masters.saved, prepend=True)
        try:
            return super().state_dict()  # type: ignore[misc, no-any-return]
        finally:
            handle.remove()

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        loaded: dict[torch.Tensor, torch.Tensor] = {}
        # PyTorch calls it last, after what users hook.
        handle = self.register_load_state_dict_pre_hook(functools.partial(self._unamp_masters.take, loaded))
        try:
            with self._unamp_masters.exchanged(self):  # state is cast to the dtype of what it belongs to
                super().load_state_dict(state_dict)  # type: ignore[misc]
                self._unamp_masters.load(loaded)
        finally:
            handle.remove()

    def __getstate__(self: Any) -> dict[str, Any]:
        return {**super().__getstate__(), "_unamp_masters": self._unamp_masters}  # type: ignore[dict-item]

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._unamp_masters.mark()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (self._unamp_class,), self.__getstate__()


def _new(own: type[torch.optim.Optimizer]) -> Any:
    decorated = _derived(own)
    return decorated.__new__(decorated)


@functools.cache
def _derived(own: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A decorated optimizer's class, under the name of its own."""
    body = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__, "_unamp_class": own}
    return type(own.__name__, (_Decorated, own), body)


def _within(optimizer: weakref.ref[Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that somebody has put on one optimizer; a cycle of references would keep a whole network in memory."""

    @functools.wraps(step)
    def exchanged(*args: Any, **kwargs: Any) -> Any:
        owner = optimizer()
        return owner._unamp_masters.step(owner, step, args, kwargs)  # type: ignore[union-attr]

    return exchanged


def _twin(parameter: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    twin = torch.nn.Parameter(weight)
    vars(twin).update(vars(parameter))  # what optimizers are told about single parameters
    return twin


def _low_parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.dtype in LOW and parameter.requires_grad:
                yield parameter


def _replace(optimizer: torch.optim.Optimizer, replaced: dict[torch.Tensor, torch.Tensor]) -> None:
    """Put other parameters into an optimizer, where they are: optimizers hold the lists themselves, too."""
    for group in optimizer.param_groups:
        group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    state = [(replaced.get(key, key), value) for key, value in optimizer.state.items()]
    optimizer.state.clear()
    optimizer.state.update(state)


def _places(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """The parameters, each with what stands for it in a ``state_dict``."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    return zip(saved, chain.from_iterable(group["params"] for group in optimizer.param_groups), strict=False)


def _under(policy: Policy | None) -> AbstractContextManager[object]:
    return nullcontext() if policy is None else policy_region(policy, framework="torch")


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two low tensors are the same to the bit. Four numbers at a time it takes a tenth of the time."""
    if not (first.is_contiguous() and second.is_contiguous()):
        return torch.equal(first.view(torch.int16), second.view(torch.int16))
    first, second = first.detach().view(-1), second.detach().view(-1)
    whole = first.numel() // 4 * 4 if second.storage_offset() % 4 == 0 else 0
    return torch.equal(first[:whole].view(torch.int64), second[:whole].view(torch.int64)) and torch.equal(
        first[whole:].view(torch.int16), second[whole:].view(torch.int16)
    )
