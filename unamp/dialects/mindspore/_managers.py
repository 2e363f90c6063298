"""`DynamicLossScaleManager` and `FixedLossScaleManager`, the scaling of `build_train_network`."""

from __future__ import annotations

from typing import Any

from unamp.dialects.mindspore._scalers import check_count


class LossScaleManager:
    """The methods of a manager.

    `build_train_network` takes MindSpore's own managers, too: it reads the values that they return.
    """

    def get_loss_scale(self) -> Any:
        """Return the loss scale."""

    def update_loss_scale(self, overflow: Any) -> None:
        """Adjust the scale, knowing whether there was an overflow."""

    def get_update_cell(self) -> Any:
        """Return None: cells are MindSpore's alone."""


class FixedLossScaleManager(LossScaleManager):
    """A scale that stays.

    Args:
        loss_scale: the scale, at least 1.
        drop_overflow_update: whether steps that overflow are skipped.

    Raises:
        ValueError: for a scale below 1.
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        if loss_scale < 1:
            raise ValueError(f"The argument 'loss_scale' must be >= 1, but got {loss_scale}")
        self._loss_scale = loss_scale
        self._drop_overflow_update = drop_overflow_update

    def get_loss_scale(self) -> float:
        """Return the scale."""
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Return whether steps that overflow are skipped."""
        return self._drop_overflow_update


class DynamicLossScaleManager(LossScaleManager):
    """A scale that moves.

    Args:
        init_loss_scale: the scale to start with, at least 1.
        scale_factor: the factor of the scale after `scale_window` finite steps in a row, and its
            divisor after an overflow.
        scale_window: see `scale_factor`.

    Raises:
        ValueError: for bad arguments.
    """

    def __init__(
        self, init_loss_scale: float = 2**24, scale_factor: float = 2, scale_window: int = 2000
    ) -> None:
        if init_loss_scale < 1.0:
            raise ValueError(
                f"The argument 'init_loss_scale' must be > 1, but got {init_loss_scale}"
            )
        self.scale_window = check_count("scale_window", scale_window)
        if scale_factor <= 0:
            raise ValueError(f"The argument 'scale_factor' must be > 0, but got {scale_factor}")
        self.loss_scale = init_loss_scale
        self.scale_factor = scale_factor
        self.cur_iter = 1
        self.last_overflow_iter = 0

    def get_loss_scale(self) -> float:
        """Return the current scale, unless a train network has taken it over."""
        return self.loss_scale

    def update_loss_scale(self, overflow: bool) -> None:
        """Adjust the scale after a step."""
        if overflow:
            self.loss_scale = max(self.loss_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.loss_scale *= self.scale_factor
        self.cur_iter += 1

    def get_drop_overflow_update(self) -> bool:
        """Return True: a scale can be adjusted only where overflows are noticed."""
        return True
