"""Scalers for gradients that are values, `all_finite`, and `build_train_network`'s managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from unamp.adapter.registry import adapters_in_use, owner
from unamp.scaling import no_policy
from unamp.scaling.loss_scale import LossScale


def all_finite(inputs: Any) -> Any:
    """Return whether no number in some tensors is infinite or NaN.

    Args:
        inputs: a tensor, or a tuple or list of them; None in it is passed over.

    Returns:
        A boolean tensor of the tensors' framework.

    Raises:
        TypeError: for a value that is no tensor.
    """
    given = inputs if isinstance(inputs, (tuple, list)) else [inputs]
    tensors = [each for each in given if each is not None]
    adapter = owner(tensors[0], "tensor") if tensors else None
    if adapter is None or not all(map(adapter.is_tensor, tensors)):
        raise TypeError(
            f"all_finite takes a tensor, or a tuple of tensors of one framework, not {inputs!r:.60}"
        )
    with no_policy():
        return adapter.all_finite(tensors)


class LossScaler(ABC):
    """A loss scaler scales a loss, unscales gradients, and adjusts its scale."""

    @abstractmethod
    def scale(self, inputs: Any) -> Any:
        """Return inputs times the scale."""

    @abstractmethod
    def unscale(self, inputs: Any) -> Any:
        """Return inputs divided by the scale."""

    @abstractmethod
    def adjust(self, grads_finite: Any) -> Any:
        """Adjust the scale, knowing whether the gradients were finite."""


class Scaling(LossScaler):
    """A loss scaler that keeps its scale in a `LossScale`.

    Inputs are tensors of any framework, and tuples and lists of them; they keep their dtypes.
    """

    _state: LossScale
    #: An adapter's object, with `read` and `write`, for the scale once a compiled graph holds it.
    in_graphs: Any = None

    def __init__(self, state: LossScale) -> None:
        # loads MindSpore's adapter, which must be there before a graph with the scaler is compiled
        adapters_in_use()
        self._state = state

    @property
    def _loss_scale(self) -> LossScale:
        return self._state if self.in_graphs is None else self.in_graphs.read(self._state)

    @_loss_scale.setter
    def _loss_scale(self, state: LossScale) -> None:
        if self.in_graphs is not None:
            self.in_graphs.write(state)
        self._state = state

    @property
    def scale_value(self) -> float:
        """The loss scale."""
        return self._loss_scale.scale

    def scale(self, inputs: Any) -> Any:
        """Return inputs times the scale: a loss, or gradients."""
        return _times(inputs, self.scale_value)

    def unscale(self, inputs: Any) -> Any:
        """Return inputs divided by the scale."""
        return _times(inputs, 1.0 / self.scale_value)


class StaticLossScaler(Scaling):
    """`mindspore.amp.StaticLossScaler`: a scale that stays.

    Args:
        scale_value: the scale, at least 1.

    Raises:
        TypeError, ValueError: for a bad scale.
    """

    def __init__(self, scale_value: float) -> None:
        super().__init__(
            LossScale(_check_number("scale_value", scale_value), dynamic=False).checked()
        )

    def adjust(self, grads_finite: Any) -> bool:
        """Return False: nothing is adjusted."""
        return False


class DynamicLossScaler(Scaling):
    """`mindspore.amp.DynamicLossScaler`, on top of `unamp.scaling.loss_scale.LossScale`.

    Args:
        scale_value: the scale to start with, at least 1.
        scale_factor: the factor of the scale after `scale_window` finite steps in a row, and its
            divisor after an overflow; the scale never falls below 1.
        scale_window: see `scale_factor`.

    Raises:
        TypeError, ValueError: for bad arguments.
    """

    def __init__(self, scale_value: float, scale_factor: int, scale_window: int) -> None:
        value = _check_number("scale_value", scale_value)
        window = _check_count("scale_window", scale_window)
        factor = _check_count("scale_factor", scale_factor)
        if factor == 1:
            raise ValueError(
                "scale_factor must be above 1; StaticLossScaler has a scale that stays"
            )
        super().__init__(
            LossScale(value, float(factor), 1.0 / factor, window, minimum=1.0).checked()
        )

    @property
    def scale_factor(self) -> int | float:
        """See the argument."""
        factor = self._loss_scale.growth_factor
        return int(factor) if factor.is_integer() else factor

    @property
    def scale_window(self) -> int:
        """See the argument."""
        return self._loss_scale.growth_interval

    @property
    def counter(self) -> int:
        """The number of finite steps in a row since the scale last changed; it can be set."""
        return self._loss_scale.growth_tracker

    @counter.setter
    def counter(self, value: int) -> None:
        self._loss_scale = self._loss_scale._replace(growth_tracker=value).checked()

    def adjust(self, grads_finite: Any) -> bool:
        """Adjust the scale.

        Args:
            grads_finite: the answer of `all_finite`: a boolean tensor, or a bool.

        Returns:
            Whether the gradients were finite.
        """
        finite = bool(grads_finite)
        self._loss_scale = self._loss_scale.after(not finite)
        return finite

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, under the names of MindSpore's attributes.

        MindSpore's own scaler has no such method.
        """
        return self._loss_scale.state("mindspore")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a saved state, in any of the forms of `unamp.GradScaler.state_dict`.

        Raises:
            TypeError, ValueError: for a value that is no scaler's state.
        """
        self._loss_scale = self._loss_scale.restored(state_dict)


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
        self.scale_window = _check_count("scale_window", scale_window)
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


def _check_number(name: str, value: object) -> float:
    """Return a scale of at least 1, or raise.

    Raises:
        TypeError, ValueError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"The type of {name!r} should be float or int, but got {type(value).__name__!r}."
        )
    if value < 1.0:
        raise ValueError(f"The argument {name!r} must be >= 1, but got {value}")
    return float(value)


def _check_count(name: str, value: object) -> int:
    """Return a positive integer, or raise.

    Raises:
        TypeError, ValueError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"The {name!r} must be int, but got {type(value).__name__!r}")
    if value <= 0:
        raise ValueError(f"The {name!r} must be int and must > 0, but got {value!r}")
    return value


def _times(inputs: Any, factor: float) -> object:
    if isinstance(inputs, (tuple, list)):
        return type(inputs)(_times(each, factor) for each in inputs)
    if inputs is None:
        return None
    adapter = owner(inputs, "tensor")
    if adapter is None:
        raise TypeError(
            f"a loss scaler scales tensors, and tuples of them, not {type(inputs).__name__}"
        )
    dtype = adapter.dtype_of(inputs)
    with no_policy():
        product = adapter.scale_loss(inputs, factor)
        return product if adapter.dtype_of(product) == dtype else adapter.cast(product, dtype)
