"""Modules with low parameters; `masters` has what becomes of the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from unamp.adapter import Decoration
from unamp_torch import sharding
from unamp_torch.masters import LOW, adopt, masters_of

__all__ = ["decorate"]


def decorate(networks: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], decoration: Decoration) -> None:
    """See `unamp.adapter.Adapter.decorate`."""
    chosen = _to_cast(networks, decoration.excluded)
    for optimizer in optimizers:
        _check_fresh(optimizer)
    weights = {parameter: _lower(parameter, decoration) for parameter in chosen}
    if decoration.master_weights:
        for optimizer in optimizers:
            adopt(optimizer, weights, decoration.master_grad)
    if decoration.save_dtype is not None:
        for network in networks:
            network.register_state_dict_post_hook(_Saved(getattr(torch, decoration.save_dtype)))


def _to_cast(networks: Iterable[torch.nn.Module], excluded: tuple[Any, ...]) -> list[torch.Tensor]:
    """The parameters to cast, each once.

    Raises:
        TypeError: where an excluded layer is none.
        ValueError: where a parameter is low already, or has no shape yet, or a network is distributed already.
    """
    _check_whole(networks)
    kept = {id(parameter) for layer in _kept(networks, excluded) for parameter in layer.parameters()}
    chosen: dict[torch.Tensor, None] = {}
    for network in networks:
        for name, parameter in network.named_parameters():
            if id(parameter) in kept:
                continue
            if is_lazy(parameter):
                raise ValueError(f"parameter {name} has no shape yet: call the network once before it is decorated")
            if parameter.dtype in LOW:
                raise ValueError(
                    f"parameter {name} is {str(parameter.dtype).removeprefix('torch.')} already: decorate makes parameters "
                    "low itself, and keeps what they were as master weights"
                )
            if parameter.dtype is torch.float32:
                chosen[parameter] = None
    return list(chosen)


def _check_whole(networks: Iterable[torch.nn.Module]) -> None:
    for network in networks:
        if any(isinstance(module, DistributedDataParallel) for module in network.modules()):
            raise ValueError("the network is distributed already: decorate the module, then make DistributedDataParallel of it")
        if any(map(sharding.is_sharded, network.parameters())):
            raise ValueError(
                "the network is distributed already, in parts: torch.distributed.fsdp keeps float32 parameters and casts them "
                "by its own MixedPrecision"
            )


def _kept(networks: Iterable[torch.nn.Module], excluded: tuple[Any, ...]) -> Iterator[torch.nn.Module]:
    """The layers that stay in float32 with all that is in them."""
    instances = {id(each) for each in excluded if isinstance(each, torch.nn.Module)}
    classes = tuple(each for each in excluded if isinstance(each, type) and issubclass(each, torch.nn.Module))
    if len(instances) + len(classes) < len({id(each) for each in excluded}):
        wrong = next(each for each in excluded if id(each) not in instances and each not in classes)
        raise TypeError(f"excluded_layers takes torch.nn.Modules and classes of them, not {wrong!r}")
    for network in networks:
        for module in network.modules():
            statistics = isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats)
            if statistics or isinstance(module, classes) or id(module) in instances:
                yield module


def _check_fresh(optimizer: torch.optim.Optimizer) -> None:
    if masters_of(optimizer) is not None:
        raise ValueError(f"this {type(optimizer).__name__} is decorated already")
    # Adagrad makes its state when it is made itself, and counts from 0.
    if any(not isinstance(own, dict) or float(own.get("step", 1)) for own in optimizer.state.values()):
        raise ValueError(
            f"this {type(optimizer).__name__} has taken steps, or has loaded some: decorate it as it is made, and load after"
        )


def _lower(parameter: torch.Tensor, decoration: Decoration) -> torch.Tensor:
    """Cast a parameter where it is; what it was is its master weight."""
    gradient, parameter.grad = parameter.grad, None
    master = parameter.data
    parameter.data = master.to(getattr(torch, decoration.dtype))
    if decoration.master_grad:
        parameter.grad_dtype = torch.float32
    if gradient is not None:
        parameter.grad = gradient.to(parameter.grad_dtype)
    return master


class _Saved:
    """Casts a module's floating parameters in its ``state_dict``."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, parameter in module.named_parameters(prefix.removesuffix("."), remove_duplicate=False):
            if name in state_dict and parameter.is_floating_point():
                state_dict[name] = state_dict[name].to(self._dtype)
