"""The decoration of modules with low parameters, and of their optimizers with master weights."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from unamp._function_types import Function
from unamp.adapter import Decoration
from unamp.adapter.layers import excluded_layers
from unamp.adapter.wrapping import derived_class
from unamp_torch import keras, sharding
from unamp_torch.exchange import low_parameters
from unamp_torch.masters import Masters, master_weight, masters_of
from unamp_torch.state import DTYPES, LOW, dtype_name

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict

T = TypeVar("T")


def decorate(
    networks: Sequence[torch.nn.Module],
    optimizers: Sequence[Any],
    decoration: Decoration,
) -> None:
    """Cast networks' parameters to low, and make optimizers step master weights.

    See `unamp.adapter.Adapter.decorate`.
    """
    modules, models = _apart(networks, keras.is_layer)
    own, of_keras = _apart(optimizers, keras.is_optimizer)
    chosen = _to_cast(modules, decoration.excluded if modules else ())
    layers, kept = keras.check(models, of_keras, decoration)
    for optimizer in own:
        _check_fresh(optimizer)
    chosen += keras.lower(models, layers, kept, decoration.dtype)
    weights = {parameter: _lower(parameter, decoration) for parameter in chosen}
    if decoration.master_weights:
        for optimizer in own:
            _adopt(optimizer, weights, decoration.master_grad)
        keras.give_masters(of_keras, weights)
    if decoration.save_dtype is not None:
        for network in modules:
            network.register_state_dict_post_hook(_Saved(getattr(torch, decoration.save_dtype)))


def _apart(values: Iterable[T], of_keras: Callable[[object], bool]) -> tuple[list[T], list[T]]:
    """Return PyTorch's own values, and those of Keras."""
    found: tuple[list[T], list[T]] = [], []
    for value in values:
        found[of_keras(value)].append(value)
    return found


def _to_cast(
    networks: Iterable[torch.nn.Module],
    excluded: tuple[torch.nn.Module | type[torch.nn.Module], ...],
) -> list[torch.Tensor]:
    """Return the parameters to cast, each once.

    Raises:
        TypeError: where an excluded layer is no layer.
        ValueError: where a parameter is low already, or has no shape yet, or a network is
            distributed already.
    """
    _check_not_distributed(networks)
    kept = {
        id(parameter) for layer in _kept(networks, excluded) for parameter in layer.parameters()
    }
    chosen: dict[torch.Tensor, None] = {}
    for network in networks:
        for name, parameter in network.named_parameters():
            if id(parameter) in kept:
                continue
            if is_lazy(parameter):
                raise ValueError(
                    f"parameter {name} has no shape yet: "
                    "call the network once before it is decorated"
                )
            if parameter.dtype in LOW:
                raise ValueError(
                    f"parameter {name} is {dtype_name(parameter.dtype)} already: decorate makes "
                    "parameters low itself, and keeps what they were as master weights"
                )
            if parameter.dtype is torch.float32:
                chosen[parameter] = None
    return list(chosen)


def _check_not_distributed(networks: Iterable[torch.nn.Module]) -> None:
    """Raise an error where a network is distributed already.

    `DistributedDataParallel` has made its buckets for gradients by then, in the dtypes of
    the parameters.
    """
    for network in networks:
        if any(isinstance(module, DistributedDataParallel) for module in network.modules()):
            raise ValueError(
                "the network is distributed already: "
                "decorate the module, then make DistributedDataParallel of it"
            )
        if any(map(sharding.is_sharded, network.parameters())):
            raise ValueError(
                "the network is distributed already, in parts: torch.distributed.fsdp keeps "
                "float32 parameters and casts them by its own MixedPrecision"
            )


def _kept(
    networks: Iterable[torch.nn.Module],
    excluded: tuple[torch.nn.Module | type[torch.nn.Module], ...],
) -> Iterator[torch.nn.Module]:
    """Yield the layers that stay in float32, with all layers inside."""
    instances, classes = excluded_layers(
        excluded, torch.nn.Module, "torch.nn.Modules and classes of them"
    )
    for network in networks:
        for module in network.modules():
            statistics = isinstance(module, _BatchNorm) or (
                isinstance(module, _InstanceNorm) and module.track_running_stats
            )
            if statistics or isinstance(module, classes) or id(module) in instances:
                yield module


def _check_fresh(optimizer: torch.optim.Optimizer) -> None:
    """Raise an error where an optimizer is decorated already, or has begun."""
    if masters_of(optimizer) is not None:
        raise ValueError(f"this {type(optimizer).__name__} is decorated already")
    # Adagrad makes its state when it is made itself, and counts from 0.
    if any(
        not isinstance(own, dict) or float(own.get("step", 1)) for own in optimizer.state.values()
    ):
        raise ValueError(
            f"this {type(optimizer).__name__} has taken steps, or has loaded some: "
            "decorate it as it is made, and load after"
        )


def _lower(parameter: torch.Tensor, decoration: Decoration) -> torch.Tensor:
    """Cast a parameter in place; return its float32 numbers, which become its master weight."""
    gradient, parameter.grad = parameter.grad, None
    master = parameter.data
    parameter.data = master.to(DTYPES[decoration.dtype])
    if decoration.master_grad:
        parameter.grad_dtype = torch.float32
    if gradient is not None:
        parameter.grad = gradient.to(parameter.grad_dtype)
    return master


class _Saved:
    """Casts a module's floating parameters in its ``state_dict``."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(
        self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, metadata: object
    ) -> None:
        for name, parameter in module.named_parameters(
            prefix.removesuffix("."), remove_duplicate=False
        ):
            if name in state_dict and parameter.is_floating_point():
                state_dict[name] = state_dict[name].to(self._dtype)


def _adopt(optimizer: Any, weights: dict[torch.Tensor, torch.Tensor], keep_gradients: bool) -> None:
    """Make an optimizer step master weights.

    Args:
        optimizer: the optimizer, which gets another class.
        weights: the numbers of parameters before they became low, by parameter.
        keep_gradients: whether the parameters' gradients are added up in float32.
    """
    own = {
        parameter: weights[parameter]
        for parameter in low_parameters(optimizer)
        if parameter in weights
    }
    optimizer._unamp_masters = Masters(
        {p: master_weight(p, weight) for p, weight in own.items()}, keep_gradients
    )
    optimizer.__class__ = _derived(type(optimizer))  # type: ignore[arg-type]  # a class is hashable, whatever its objects are
    if (step := vars(optimizer).get("step")) is not None:
        # a schedule made before has put it on the optimizer, where the class is not asked
        optimizer.step = _within(weakref.ref(optimizer), step)


class _Decorated:
    """The first base of a decorated optimizer's class; the second is the optimizer's own class.

    A derived class, and not a wrapper: `isinstance`, schedules, hooks, copies and pickles
    go on working.
    """

    _unamp_class: type[torch.optim.Optimizer]  #: the optimizer's own class
    _unamp_masters: Masters

    def step(self: Any, *args: Any, **kwargs: Any) -> object:
        return self._unamp_masters.step(self, super().step, args, kwargs)  # type: ignore[misc]

    step.hooked = True  # type: ignore[attr-defined]  # the own class's step calls the hooks; PyTorch would call them here too

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        self._unamp_masters.narrow_gradients(self)

    def state_dict(self: Any) -> StateDict:
        # PyTorch calls this hook first, so the hooks of users see the master weights.
        handle = self.register_state_dict_post_hook(self._unamp_masters.saved, prepend=True)
        try:
            return super().state_dict()  # type: ignore[misc, no-any-return]
        finally:
            handle.remove()

    def load_state_dict(self: Any, state_dict: StateDict) -> None:
        loaded: dict[torch.Tensor, torch.Tensor] = {}
        # PyTorch calls this hook last, after those of users.
        handle = self.register_load_state_dict_pre_hook(
            functools.partial(self._unamp_masters.take, loaded)
        )
        try:
            with self._unamp_masters.exchanged(self):
                # PyTorch casts state to its parameter's dtype: a master weight's, float32
                super().load_state_dict(state_dict)  # type: ignore[misc]
                self._unamp_masters.load(loaded)
        finally:
            handle.remove()

    def __getstate__(self: Any) -> dict[str, object]:
        return {**super().__getstate__(), "_unamp_masters": self._unamp_masters}  # type: ignore[dict-item]

    def __setstate__(self: Any, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._unamp_masters.mark()

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _new, (self._unamp_class,), self.__getstate__()


def _new(own: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    decorated = _derived(own)  # type: ignore[arg-type]  # likewise
    return decorated.__new__(decorated)


@functools.cache
def _derived(own: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a decorated optimizer's class, under the name of its own."""
    made: type[torch.optim.Optimizer] = derived_class(own, {"_unamp_class": own}, (_Decorated,))
    return made


def _within(optimizer: weakref.ref[Any], step: Function) -> Function:
    """Wrap a step that somebody has put on one optimizer.

    The reference is weak: a cycle of references would keep the network in memory.
    """

    @functools.wraps(step)
    def exchanged(*args: Any, **kwargs: Any) -> object:
        owner = optimizer()
        return owner._unamp_masters.step(owner, step, args, kwargs)  # type: ignore[union-attr]

    return exchanged
