"""Optimizers that step the float32 master weights of low parameters.

A decorated optimizer has a class derived from its own. During its step, the memory of each low
parameter and of its gradient is exchanged for float32 memory. The parameter object stays the same:
its name is the key of the optimizer's state, and groups and clips refer to it. So the optimizer's
own step runs unchanged, with float32 kernels, the only ones on the CPU. After the step the values
are rounded into the low memory.

Master weights are kept where Paddle's own ``multi_precision`` keeps them, and saved by its key.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import paddle

from unamp._function_types import Function, Keywords
from unamp.adapter.state import Step, suspended
from unamp_paddle.exchange import Exchange, alias, exchange_memory, follow
from unamp_paddle.hooks import HOOKS
from unamp_paddle.native import switched_off
from unamp_paddle.state import FLOAT32, LOW, Tensor, dtype_of, thread

if TYPE_CHECKING:
    import numpy as np
    from paddle.optimizer import Optimizer

# The functions themselves, not the module's attributes, which a region replaces.
_add, _assign_out_, _cast = paddle._C_ops.add, paddle._C_ops.assign_out_, paddle._C_ops.cast

#: Paddle's own key for master weights in an optimizer's ``state_dict``.
MASTER_WEIGHTS = "master_weights"


def masters_of(optimizer: Optimizer) -> Masters | None:
    """Return the master weights of a decorated optimizer; None for one that keeps none."""
    masters: Masters | None = getattr(optimizer, "_unamp_masters", None)
    return masters if masters is not None and masters.kept else None


class Masters:
    """An optimizer's float32 master weights, and their exchange with the low parameters.

    A parameter that becomes trainable later gets a master weight at its first step.
    """

    def __init__(self, optimizer: Optimizer, *, kept: bool) -> None:
        self.kept = kept
        self._owner = weakref.ref(optimizer)
        self._exchanged: list[Exchange] | None = None
        self._known: dict[str, Exchange] = {}  # by the parameters' names

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Exchange low parameters and gradients for float32 ones while the context is open.

        No policy is in force meanwhile.
        """
        if self._exchanged is not None:
            yield
            return
        with suspended(thread), switched_off() or nullcontext():
            try:
                self._exchange()
                yield
            finally:
                self._give_back()

    def call(self, function: Function, args: Iterable[object], kwargs: Keywords) -> object:
        """Call a method of the optimizer with its master weights exchanged.

        During a closure the parameters are low again, and the caller's policy is in force.
        """
        with Step(thread, self.exchanged) as running:
            args, kwargs = running.handed(args, kwargs)
            return function(*args, **kwargs)

    def widen_gradients(self) -> None:
        """Cast the low gradients of low parameters to float32, in place."""
        for parameter in low_parameters(self._owner()):
            gradient = parameter._grad_ivar()
            if gradient is not None and gradient.dtype in LOW:
                exchange_memory(gradient, _cast(alias(gradient), FLOAT32))

    def follow(self) -> None:
        """Update the master weights of low parameters that other code has changed."""
        if self._exchanged is None and self.kept:
            for parameter in low_parameters(self._owner()):
                self._master(parameter)

    def load(self, weights: Mapping[str, Tensor | np.ndarray]) -> None:
        """Load master weights while they are exchanged; low parameters get them at the end."""
        for each in self._exchanged or ():
            if (weight := weights.get(each.parameter.name)) is not None:
                assign_master(weight, each.master)

    def _exchange(self) -> None:
        self._exchanged = []
        with paddle.no_grad():
            for parameter in low_parameters(self._owner()):
                each = self._known.get(parameter.name)
                if each is None or each.parameter is not parameter:
                    each = Exchange(parameter)
                each.begin(self._master(parameter))
                self._exchanged.append(each)
        self._known = {each.parameter.name: each for each in self._exchanged}

    def _give_back(self) -> None:
        exchanged, self._exchanged = self._exchanged or [], None
        with paddle.no_grad():
            for each in exchanged:
                each.finish()

    def _master(self, parameter: Tensor) -> Tensor:
        weights = self._owner()._master_weights  # type: ignore[union-attr]
        master = weights.get(parameter.name)
        if master is None:
            master = _cast(parameter.detach(), FLOAT32)
            if self.kept:
                weights[parameter.name] = master
            return master
        known = self._known.get(parameter.name)
        if known is None or not known.has_given(parameter, master):
            follow(parameter, master)
        return master


def check_masters(optimizer: Optimizer, weights: Mapping[str, Tensor | np.ndarray]) -> None:
    """Check master weights that are to be loaded.

    Raises:
        ValueError: where a weight has no parameter, or not its parameter's shape.
    """
    own = {parameter.name: parameter for parameter in parameters(optimizer)}
    for name, weight in weights.items():
        if name not in own:
            raise ValueError(
                f"the optimizer has no parameter {name}, whose master weight is to be loaded"
            )
        if list(weight.shape) != list(own[name].shape):
            raise ValueError(
                f"the loaded master weight of {name} has the shape {list(weight.shape)}, "
                f"the parameter has {list(own[name].shape)}"
            )


def assign_master(weight: Tensor | np.ndarray, master: Tensor) -> None:
    """Write a loaded master weight into the optimizer's own, in place."""
    weight = weight if isinstance(weight, Tensor) else paddle.to_tensor(weight)
    _assign_out_(_cast(weight, FLOAT32), master)


def add_up_wide(parameter: Tensor) -> None:
    """Accumulate a low parameter's gradient in float32, which Paddle itself cannot on the CPU."""
    alive, held = weakref.ref(parameter), []  # weak: the parameter owns its hooks

    def before(gradient: Tensor) -> None:
        found = alive()._grad_ivar()  # type: ignore[union-attr]
        if found is not None and dtype_of(found) is FLOAT32:
            held.append(alias(found))
            alive().clear_gradient(False)  # type: ignore[union-attr]

    def after(*_: object) -> None:
        gradient = alive()._grad_ivar()  # type: ignore[union-attr]
        with paddle.no_grad():
            wide = _cast(alias(gradient), FLOAT32)
            exchange_memory(gradient, _add(wide, held.pop()) if held else wide)

    parameter.register_hook(before)
    parameter._register_backward_hook(after)


def parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Return an optimizer's parameters, in the optimizer's order."""
    for each in HOOKS.attribute(optimizer, "_param_groups") or ():
        if isinstance(each, dict):
            yield from each["params"]
        else:
            yield each


def low_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Return the low parameters that an optimizer trains, in the optimizer's order."""
    return (
        parameter
        for parameter in parameters(optimizer)
        if parameter.dtype in LOW and not parameter.stop_gradient
    )
