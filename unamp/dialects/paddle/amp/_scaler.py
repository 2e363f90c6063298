"""`paddle.amp.GradScaler` and `AmpScaler`, for frameworks whose parameters hold their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import unamp.scaling
from unamp.adapter import Adapter
from unamp.dialects._in_use import framework_in_use
from unamp.errors import shortened


class AmpScaler(unamp.scaling.GradScaler):
    """`paddle.amp.AmpScaler`, on top of `unamp.GradScaler`. It works on the CPU too.

    Args:
        enable: False makes it do nothing.
        init_loss_scaling: the scale to start with.
        incr_ratio: the factor of the scale after `incr_every_n_steps` updates in a row without an
            overflow.
        decr_ratio: its factor after `decr_every_n_nan_or_inf` updates in a row with an overflow.
        incr_every_n_steps, decr_every_n_nan_or_inf: see the ratios.
        use_dynamic_loss_scaling: False keeps the scale where it is.

    Raises:
        TypeError: for an `enable` that is no bool: a scale given in its place would be lost.
        AssertionError: for ratios on the wrong side of 1.

    Semantics:
        https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/GradScaler_en.html
    """

    def __init__(
        self,
        enable: bool = True,
        init_loss_scaling: float = 2.0**15,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 1000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        _check_enable(enable)
        self._init_loss_scaling = init_loss_scaling if enable else 1.0
        if not enable:
            super().__init__(enabled=False)
            return
        _check_ratio("incr_ratio", "> 1.0", incr_ratio > 1.0)
        _check_ratio("decr_ratio", "< 1.0", decr_ratio < 1.0)
        super().__init__(
            init_loss_scaling,
            incr_ratio,
            decr_ratio,
            incr_every_n_steps,
            backoff_interval=decr_every_n_nan_or_inf,
            dynamic=use_dynamic_loss_scaling,
        )

    def scale(self, var: Any) -> Any:
        """See `unamp.GradScaler.scale`."""
        return super().scale(var)

    def is_enable(self) -> bool:
        """Return whether the scaler is enabled; a disabled one does nothing."""
        return self.is_enabled()

    def is_use_dynamic_loss_scaling(self) -> bool:
        """Return whether the scale is adjusted after steps."""
        return self._enabled and self._loss_scale.dynamic

    def get_init_loss_scaling(self) -> float:
        """Return the scale that the scaler started with, or that was last set or loaded."""
        return self._init_loss_scaling

    def set_init_loss_scaling(self, new_init_loss_scaling: float) -> None:
        """Set the scale."""
        self._set(scale=new_init_loss_scaling)
        self._init_loss_scaling = new_init_loss_scaling

    def get_incr_ratio(self) -> float:
        """See the argument."""
        return self._loss_scale.growth_factor

    def set_incr_ratio(self, new_incr_ratio: float) -> None:
        """Set the growth factor; it must be above 1."""
        _check_ratio("new_incr_ratio", "> 1.0", new_incr_ratio > 1.0)
        self._set(growth_factor=new_incr_ratio)

    def get_decr_ratio(self) -> float:
        """See the argument."""
        return self._loss_scale.backoff_factor

    def set_decr_ratio(self, new_decr_ratio: float) -> None:
        """Set the backoff factor; it must be below 1."""
        _check_ratio("new_decr_ratio", "< 1.0", new_decr_ratio < 1.0)
        self._set(backoff_factor=new_decr_ratio)

    def get_incr_every_n_steps(self) -> int:
        """See the argument."""
        return self._loss_scale.growth_interval

    def set_incr_every_n_steps(self, new_incr_every_n_steps: int) -> None:
        """Set the growth interval."""
        self._set(growth_interval=new_incr_every_n_steps)

    def get_decr_every_n_nan_or_inf(self) -> int:
        """See the argument."""
        return self._loss_scale.backoff_interval

    def set_decr_every_n_nan_or_inf(self, new_decr_every_n_nan_or_inf: int) -> None:
        """Set the backoff interval."""
        self._set(backoff_interval=new_decr_every_n_nan_or_inf)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the state to save, under Paddle's keys.

        `unamp.GradScaler.load_state_dict` and every dialect's read them. The scale is a NumPy array
        with one number, as Paddle's; where NumPy is not imported, a list.
        """
        state, numpy = super().state_dict("paddle"), framework_in_use("numpy")
        return state | {"scale": numpy.float32(state["scale"])} if state and numpy else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state, Paddle's or another framework's; see `unamp.GradScaler.load_state_dict`."""
        super().load_state_dict(state_dict)
        if self._enabled:
            self._init_loss_scaling = self._loss_scale.scale

    def _adapter_of_optimizer(self, optimizer: object) -> Adapter:
        adapter = super()._adapter_of_optimizer(optimizer)
        if not adapter.holds_gradients:
            raise TypeError(
                f"gradients of {adapter.framework} are values, and Paddle's scaler takes none: use "
                "unamp.GradScaler, as in step(optimizer, gradients=gradients)"
            )
        return adapter


class GradScaler(AmpScaler):
    """`paddle.amp.GradScaler`: an `AmpScaler` with other defaults and with `step` and `update`."""

    def __init__(
        self,
        enable: bool = True,
        init_loss_scaling: float = 2.0**16,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        super().__init__(
            enable,
            init_loss_scaling,
            incr_ratio,
            decr_ratio,
            incr_every_n_steps,
            decr_every_n_nan_or_inf,
            use_dynamic_loss_scaling,
        )

    def step(self, optimizer: Any) -> None:  # type: ignore[override]
        """See `unamp.GradScaler.step`; as Paddle's, it returns nothing. `skipped` counts skips."""
        super().step(optimizer)

    def update(self) -> None:  # type: ignore[override]
        """See `unamp.GradScaler.update`."""
        super().update()

    def unscale_(self, optimizer: Any) -> None:  # type: ignore[override]
        """See `unamp.GradScaler.unscale_`."""
        super().unscale_(optimizer)


def _check_ratio(name: str, rule: str, kept: bool) -> None:
    if not kept:
        raise AssertionError(f"The {name} must be {rule}.")


def _check_enable(enable: object) -> None:
    # NumPy's own booleans are of another class, and safe: they hold nothing but True and False.
    if type(enable).__name__ not in ("bool", "bool_"):
        raise TypeError(
            f"enable must be True or False, not {shortened(enable)}: the first argument switches "
            "the scaler on or off, as in Paddle; name the scale to start with: "
            "init_loss_scaling=..."
        )
