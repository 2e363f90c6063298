"""Hooks of PyTorch that report gradients to a trace, for `unamp.trace(gradients=True)`."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.observing import unobserved
from unamp.adapter.open_traces import parameter_hook
from unamp_torch.networks import named_parameters
from unamp_torch.numbers import has_numbers, local, row
from unamp_torch.state import TRACED, dtype_name, thread, without_kernels


def follow_parameters(path: str, network: torch.nn.Module) -> None:
    """Put hooks on the parameters of a network, where their gradients are wanted.

    See `unamp.adapter.open_traces.Layers`.
    """
    for name, parameter in named_parameters(network):
        trained = (
            not is_lazy(parameter)
            and parameter.requires_grad
            and parameter.is_leaf
            and not parameter.is_inference()
        )
        if (
            trained
            and has_numbers(parameter)
            and (hook := parameter_hook(f"{path}.{name}", parameter)) is not None
        ):
            follow(parameter, hook, 0)


def follow(tensor: torch.Tensor, hook: GradientHook, result: int) -> torch.Tensor:
    """Report the gradient of a result to `hook`, and return the result.

    Args:
        tensor: the result; where it needs no gradient, nothing is reported. The hook sees the
            gradient before a change in place, too.
    """
    if not tensor.requires_grad:
        return tensor
    if not has_numbers(tensor):
        hook.leave_out(
            "its result has no plain numbers (sparse, nested, inside of a transform of torch.func)",
            result,
        )
        return tensor

    def arrived(gradient: torch.Tensor | None) -> None:
        if gradient is None or not hook.wanted:  # None: of several results, this one was not used
            return
        gradient = local(gradient)
        if not has_numbers(gradient):
            hook.leave_out("its gradient has no plain numbers (sparse, nested, batched)", result)
            return
        with without_kernels(TRACED.key), unobserved(thread), torch.no_grad():
            hook.arrived(dtype_name(gradient.dtype), tuple(gradient.shape), row(gradient), result)

    hook.when_closed(tensor.register_hook(arrived).remove)
    return tensor
