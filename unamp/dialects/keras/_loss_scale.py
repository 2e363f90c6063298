"""`keras.mixed_precision.LossScaleOptimizer` around optimizers of every framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import unamp
from unamp.adapter.framework_types import Tensor
from unamp.adapter.registry import owner
from unamp.dialects._in_use import framework_in_use
from unamp.dialects.keras._policy import KerasOwn

#: The arguments that Keras accepts with these values alone, for models that were saved long ago.
_INNER = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


class LossScaleOptimizer(metaclass=KerasOwn):
    """An optimizer that scales the loss, unscales the gradients, and skips the steps that overflow.

    Around an optimizer of Keras, the class returns Keras' own. Around any other::

        optimizer = LossScaleOptimizer(torch.optim.SGD(parameters, lr=0.1))
        optimizer.scale_loss(loss).backward()
        optimizer.apply([p.grad for p in parameters], parameters)

    Args:
        inner_optimizer: the optimizer that takes the steps.
        initial_scale: the scale to start with.
        dynamic_growth_steps: the number of finite steps in a row after which the scale is doubled.
            An overflow halves it.
        name: a name.
        **kwargs: the arguments that Keras accepts for old models, with their defaults alone.

    Raises:
        TypeError: for a value that is no optimizer.
        ValueError: for other arguments, and bad numbers.

    Semantics: https://keras.io/api/optimizers/loss_scale_optimizer/
    """

    def __new__(
        cls,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return Keras' own optimizer, or a new one of this class."""
        keras = framework_in_use("keras")
        if keras is not None and isinstance(inner_optimizer, keras.optimizers.Optimizer):
            own = keras.mixed_precision.LossScaleOptimizer
            return own(inner_optimizer, initial_scale, dynamic_growth_steps, name, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_rest(kwargs)
        adapter = owner(inner_optimizer, "optimizer")
        if adapter is None:
            raise TypeError(
                "inner_optimizer must be an optimizer of a framework in use, "
                f"not {type(inner_optimizer).__name__}"
            )
        self.inner_optimizer = inner_optimizer
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self.name = "loss_scale_optimizer" if name is None else name
        self._holds_gradients, self._framework = adapter.holds_gradients, adapter.framework
        #: The scaler, which counts skipped steps and names a parameter that overflowed.
        self.scaler = unamp.GradScaler(initial_scale, growth_interval=dynamic_growth_steps)

    @property
    def dynamic_scale(self) -> float:
        """The loss scale."""
        return self.scaler.get_scale()

    @property
    def step_counter(self) -> int:
        """Return the number of finite steps in a row since the scale last changed."""
        return int(self.state_dict()["step_counter"])

    def scale_loss(self, loss: Any) -> Any:
        """Return a loss times the scale."""
        return self.scaler.scale(loss)

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Unscale the gradients of a scaled loss, step where they are finite, and update the scale.

        Args:
            grads: the gradients.
            trainable_variables: the parameters of the gradients. PyTorch's and PaddlePaddle's
                parameters hold their gradients, and get these. Other frameworks do not need them:
                there the gradients are for the optimizer's parameters, in its order.

        Raises:
            TypeError: without parameters where they are needed.
            RuntimeError: where no loss has been scaled.
        """
        if self._holds_gradients:
            self._hold(grads, trainable_variables)
            self.scaler.step(self.inner_optimizer)
        else:
            self.scaler.step(self.inner_optimizer, gradients=tuple(grads))
        self.scaler.update()

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Do as `apply` does, given each gradient beside its parameter."""
        grads, trainable_variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments without the inner optimizer, which Keras cannot save."""
        return {
            "name": self.name,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Return an optimizer from `get_config`.

        Around another framework's optimizer, put that optimizer beside the config:
        ``LossScaleOptimizer.from_config({**config, "inner_optimizer": optimizer})``.

        Args:
            config: the arguments. An inner optimizer of Keras may be one that Keras has saved.
            custom_objects: classes by name, for Keras to find the inner optimizer's.

        Raises:
            ValueError: where there is no inner optimizer, and for unknown arguments.
            TypeError: where it is no optimizer.
        """
        keras = framework_in_use("keras")
        given = dict(config)
        if keras is not None and isinstance(given.get("inner_optimizer"), Mapping):
            return keras.mixed_precision.LossScaleOptimizer.from_config(given, custom_objects)
        if "inner_optimizer" not in given:
            raise ValueError(
                "config has no 'inner_optimizer', since only Keras saves its optimizers; "
                "add yours, as in "
                "LossScaleOptimizer.from_config({**config, 'inner_optimizer': optimizer})"
            )
        return cls(given.pop("inner_optimizer"), **given)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale's state under the names of Keras' variables.

        Keras' own optimizer has no such method.
        """
        return self.scaler.state_dict("keras")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a saved state; see `unamp.GradScaler.load_state_dict`."""
        self.scaler.load_state_dict(state_dict)

    def _hold(self, grads: Iterable[Tensor], trainable_variables: Iterable[Tensor] | None) -> None:
        if trainable_variables is None:
            raise TypeError(
                f"parameters of {self._framework} hold their gradients: say whose these are, "
                "as in apply(gradients, parameters)"
            )
        for parameter, gradient in zip(trainable_variables, grads, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient


def _check_rest(given: dict[str, object]) -> None:
    if not given.pop("dynamic", True):
        raise ValueError(
            "LossScaleOptimizer no longer supports `dynamic=False`; "
            "unamp.GradScaler(dynamic=False) does"
        )
    for name, usual in _INNER.items():
        if given.pop(name, usual) != usual:
            raise ValueError(
                f"LossScaleOptimizer does not support `{name}`. "
                "Instead, set it on the `inner_optimizer`."
            )
    if given:
        raise ValueError(f"LossScaleOptimizer does not support arguments: {', '.join(given)}.")
