"""`torch.amp.GradScaler` for every framework."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import unamp.scaling
from unamp.dialects._in_use import has_gpu
from unamp.scaling import NothingChecked


class GradScaler(unamp.scaling.GradScaler):
    """`torch.amp.GradScaler` on top of `unamp.GradScaler`.

    A step returns the result of the optimizer's step. Where gradients are values (MindSpore,
    TensorFlow) hand them over: ``step(optimizer, gradients=gradients)``.

    Args:
        device: ``"cuda"`` without a GPU warns and disables the scaler, as torch's. Any other serves
            every device.
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: see `unamp.GradScaler`.

    Raises:
        TypeError: for a number as the device, which torch accepts in silence, and then scales by
            the default.
        AssertionError: for factors on the wrong side of 1; later, for calls in a wrong order.

    Semantics: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if isinstance(device, (int, float)):
            raise TypeError(
                "the first argument of torch's GradScaler is the device, "
                f"not a scale: init_scale={device!r}"
            )
        if enabled and device == "cuda" and not has_gpu():
            warnings.warn(
                "GradScaler is enabled, but CUDA is not available. Disabling.", stacklevel=2
            )
            enabled = False
        if not enabled:
            super().__init__(enabled=False)
            return
        _check_factors(growth_factor, backoff_factor)
        super().__init__(init_scale, growth_factor, backoff_factor, growth_interval)

    def scale(self, outputs: Any) -> Any:
        """See `unamp.GradScaler.scale`.

        Raises:
            ValueError: for what holds anything but tensors.
        """
        try:
            return super().scale(outputs)
        except TypeError as error:
            raise ValueError(
                f"outputs must be a Tensor or an iterable of Tensors: {error}"
            ) from None

    def unscale_(self, optimizer: Any) -> None:  # type: ignore[override]
        """See `unamp.GradScaler.unscale_`, which also takes gradients that are values.

        Raises:
            AssertionError: where no loss has been scaled.
            TypeError: where gradients are values.
        """
        if self._enabled:
            self._check_begun("unscale_")
            if not self._adapter_of_optimizer(optimizer).holds_gradients:
                raise TypeError(
                    "torch's unscale_() takes no gradients, and here they are values: use "
                    "unamp.GradScaler, whose unscale_(optimizer, gradients) returns them unscaled"
                )
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """See `unamp.GradScaler.step`.

        Returns:
            The result of the optimizer's step; None where it was skipped.

        Raises:
            AssertionError: where no loss has been scaled, or there are no gradients.
            RuntimeError: for a second call before `update`, or with a closure, also one by
                position, which torch accepts in silence.
        """
        if self._enabled:
            self._check_begun("step")
        try:
            return self._stepped(optimizer, kwargs.pop("gradients", None), args, kwargs)[1]
        except NothingChecked as error:
            raise AssertionError(str(error)) from None

    def update(self, new_scale: Any = None) -> None:
        """See `unamp.GradScaler.update`.

        Raises:
            AssertionError: where no loss has been scaled, or no gradients have been checked.
        """
        if self._enabled:
            self._check_begun("update")
        try:
            super().update(new_scale)
        except NothingChecked as error:
            raise AssertionError(str(error)) from None

    def get_growth_factor(self) -> float:
        """Return the growth factor of the scale.

        It applies after `get_growth_interval` updates in a row without an overflow.
        """
        return self._loss_scale.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor."""
        self._set(growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale backs off after an overflow."""
        return self._loss_scale.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor."""
        self._set(backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Return the number of updates without an overflow after which the scale grows."""
        return self._loss_scale.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval."""
        self._set(growth_interval=new_interval)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the state to save, under torch's keys.

        `unamp.GradScaler.load_state_dict` and every dialect's read them.
        """
        return super().state_dict("torch")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state, torch's or another framework's; see `unamp.GradScaler.load_state_dict`."""
        super().load_state_dict(state_dict)

    def _check_begun(self, name: str) -> None:
        if self._adapter is None:
            raise AssertionError(
                f"Attempted {name}, but no loss has been scaled; call scaler.scale(loss) before"
            )


def _check_factors(growth_factor: float, backoff_factor: float) -> None:
    if growth_factor <= 1.0:
        raise AssertionError("The growth factor must be > 1.0.")
    if backoff_factor >= 1.0:
        raise AssertionError("The backoff factor must be < 1.0.")
