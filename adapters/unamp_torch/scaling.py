"""Scaled losses, and the gradients that an optimizer's parameters hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from unamp_torch import sharding
from unamp_torch.masters import masters_of
from unamp_torch.numbers import local
from unamp_torch.state import LOW, dtype_name


def scale_loss(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """Return a loss times the scale.

    A low scalar becomes float32, as it does with PyTorch's own scale, a float32 tensor.
    """
    return (loss.float() if loss.dim() == 0 and loss.dtype in LOW else loss) * scale


def all_finite(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all numbers are finite, as a tensor, so that nobody waits for the device."""
    with torch.no_grad():
        found = [torch.isfinite(_numbers(tensor)).all() for tensor in tensors]
        return (
            torch.stack([each.to(found[0].device) for each in found]).all()
            if found
            else torch.tensor(True)
        )


class TorchGradients:
    """The gradients that an optimizer's parameters hold; see `unamp.adapter.Gradients`.

    The operator of `torch.amp.GradScaler` unscales and checks all gradients of one device and dtype
    at once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, given: object) -> None:
        if given is not None:
            raise TypeError("PyTorch's parameters hold their gradients: none can be given")
        self.values = None
        self._optimizer = optimizer
        # one number for each device; not zero means infinite or NaN
        self._found: list[torch.Tensor] = []
        self._overflow: bool | None = None

    def dtypes(self) -> frozenset[str]:
        wide = masters_of(self._optimizer) is not None
        found = {gradient.dtype for gradient in self._gradients()}
        return frozenset(
            "float32" if wide and dtype in LOW else dtype_name(dtype) for dtype in found
        )

    def unscale(self, scale: float) -> None:
        if (masters := masters_of(self._optimizer)) is not None:
            masters.widen_gradients(self._optimizer)
        found: dict[torch.device, torch.Tensor] = {}
        with torch.no_grad():
            for (device, _), gradients in self._grouped().items():
                found.setdefault(device, torch.zeros((), dtype=torch.float32, device=device))
                inverse = torch.full((), 1.0 / scale, dtype=torch.float32, device=device)
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found[device], inverse)
        self._found = sharding.agreed(self._optimizer, list(found.values()))

    def overflow(self) -> bool | None:
        if self._overflow is None and self._found:
            self._overflow = any(found.item() != 0.0 for found in self._found)
        return self._overflow

    def first_nonfinite(self, network: torch.nn.Module | None) -> str | None:
        names = (
            {}
            if network is None
            else {id(parameter): name for name, parameter in network.named_parameters()}
        )
        for own_name, parameter in self._named():
            # Of a sharded gradient this rank's part: the other ranks may not be asking.
            if (
                parameter.grad is not None
                and not torch.isfinite(_numbers(local(parameter.grad))).all()
            ):
                name: str = names.get(id(parameter), own_name)
                return name
        return None

    def apply(self, *args: Any, **kwargs: Any) -> object:
        if not self._found or not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            return self._optimizer.step(*args, **kwargs)
        # torch.amp.GradScaler tells such an optimizer the same after `unscale_`.
        told: Any = self._optimizer
        told.grad_scale = getattr(told, "grad_scale", None)
        told.found_inf = torch.stack(
            [found.to(self._found[0].device) for found in self._found]
        ).sum()
        try:
            return told.step(*args, **kwargs)
        finally:
            del told.grad_scale, told.found_inf

    def _grouped(self) -> dict[tuple[torch.device, torch.dtype], list[torch.Tensor]]:
        groups = defaultdict(list)
        for gradient in self._gradients():
            numbers = gradient._values() if gradient.is_sparse else gradient
            groups[numbers.device, numbers.dtype].append(numbers)
        return groups

    def _gradients(self) -> list[torch.Tensor]:
        return [
            gradient
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if (gradient := parameter.grad) is not None
        ]

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parameters by the names that the optimizer was given, or by their places."""
        for index, group in enumerate(self._optimizer.param_groups):
            places = (
                f"parameter {place} of group {index}" for place in range(len(group["params"]))
            )
            yield from zip(group.get("param_names") or places, group["params"], strict=True)


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient
