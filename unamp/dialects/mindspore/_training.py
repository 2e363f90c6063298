"""`build_train_network`: network, loss, policy, loss scaling and optimizer as one call per step."""

from __future__ import annotations

from functools import cache
from typing import Any

import unamp
from unamp._compiler_marks import not_compiled
from unamp._function_types import Function
from unamp.adapter import Adapter
from unamp.adapter.framework_types import Layer, Tensor
from unamp.adapter.registry import owner
from unamp.dialects._in_use import framework_in_use
from unamp.dialects.mindspore._networks import auto_mixed_precision
from unamp.dialects.mindspore._scalers import DynamicLossScaleManager
from unamp.dtypes import ELIGIBLE, dtype_name
from unamp.errors import NotExpressible
from unamp.scaling import no_policy

_LEVELS = ("O0", "O1", "O2", "O3", "auto")
_OPTIONS = ("cast_model_type", "keep_batchnorm_fp32", "loss_scale_manager")


def build_train_network(
    network: Any,
    optimizer: Any,
    loss_fn: Any = None,
    level: str = "O0",
    boost_level: str = "O0",
    **kwargs: Any,
) -> TrainNetwork:
    """Return a trainer that runs one training step on each batch it is called with.

    It computes the loss under a policy, scales it, and takes an optimizer step.

    Args:
        network: a network of a framework that is imported.
        optimizer: an optimizer of the same framework, made for the network's parameters.
        loss_fn: called with the network's output and the label, both in float32 (a loss of Keras
            gets the label first, as those do); None: the network returns the loss.
        level: as for `auto_mixed_precision`. O2 scales the loss with a `DynamicLossScaleManager`,
            the others do not.
        boost_level: ``"O0"``; the others are MindSpore's own.
        **kwargs: ``cast_model_type`` (float16 or float32), ``keep_batchnorm_fp32`` and
            ``loss_scale_manager`` override what comes from the level.

    Returns:
        A callable; for MindSpore's networks a Cell, as MindSpore's own. It returns the loss; where
        a loss scale manager skips steps that overflow, the loss, whether there was an overflow, and
        the scale that was used.

    Raises:
        TypeError, ValueError: for bad arguments.
        NotExpressible: for a boost level.

    Semantics:
        https://www.mindspore.cn/docs/en/r2.7.0/api_python/amp/mindspore.amp.build_train_network.html
    """
    adapter = owner(network, "network")
    if adapter is None:
        raise TypeError(
            "network should be a Cell, or another framework's network, "
            f"not {type(network).__name__}"
        )
    if not adapter.is_optimizer(optimizer):
        raise TypeError(
            f"The type of 'optimizer' should be an optimizer of {adapter.framework}, "
            f"not {type(optimizer).__name__}"
        )
    _check_level(level, boost_level)
    _check_options(kwargs)
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(
            "The type of 'loss_fn' should be 'Cell', or a function, "
            f"but got {type(loss_fn).__name__!r}."
        )
    manager = kwargs.get("loss_scale_manager", DynamicLossScaleManager() if level == "O2" else None)
    kind = _cell_class() if adapter.framework == "mindspore" else TrainNetwork
    return kind(adapter, network, optimizer, loss_fn, _effective(level, kwargs), manager)


class TrainNetwork:
    """A trainer, as `build_train_network` returns it.

    Attributes:
        network: the network that was given, whose parameters are trained.
        optimizer: the optimizer.
        scaler: the `unamp.GradScaler`, to save its state and to count skipped steps. It is disabled
            without a manager.
    """

    def __init__(
        self,
        adapter: Adapter,
        network: Layer,
        optimizer: object,
        loss_fn: Function | None,
        level: Any,
        manager: Any,
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.scaler, self._skips = _scaler(manager)
        self._fixed_scale = (
            None if manager is None or self._skips else float(manager.get_loss_scale())
        )
        self._adapter = adapter
        # in a tuple, so that it is no part of the cell, which has the network already
        self._low_network = (auto_mixed_precision(network, level),)
        self._loss_fn: Function | None = loss_fn

    def __call__(self, *inputs: object) -> object:
        """Take a step with a batch.

        The batch is the data and the label, or the network's inputs where it has the loss inside.
        """
        _set_train(self.network)
        return self._step(*inputs)

    @property
    def _low(self) -> Layer:
        """The network under the policy."""
        return self._low_network[0]

    def _step(self, *inputs: object) -> object:
        loss, gradients = self._adapter.backward(
            lambda: self._scaled_loss(inputs), self.network, self.optimizer
        )
        if self._fixed_scale is not None:
            self._step_with_all(gradients)
            return loss
        scale = self.scaler.get_scale()
        ran = self.scaler.step(self.optimizer, gradients=gradients)
        self.scaler.update()
        return (loss, not ran, scale) if self._skips else loss

    def _scaled_loss(self, inputs: tuple[object, ...]) -> tuple[Tensor, Tensor]:
        loss = self._loss(inputs)
        if self._fixed_scale is None:
            return self.scaler.scale(loss), loss
        with no_policy():
            return self._adapter.scale_loss(loss, self._fixed_scale), loss

    def _loss(self, inputs: tuple[object, ...]) -> Tensor:
        # Keras is told at each call whether it is training.
        mode = {"training": True} if hasattr(self.network, "trainable_variables") else {}
        if self._loss_fn is None:
            return self._low(*inputs, **mode)
        data, label = inputs
        both = self._wide(self._low(data, **mode)), self._wide(label)
        return self._loss_fn(*(reversed(both) if _is_keras_loss(self._loss_fn) else both))

    def _step_with_all(self, gradients: object) -> None:
        """Take a step whatever the gradients are.

        An optimizer with a loss scale of its own (MindSpore's) unscales them itself.
        """
        held = self._adapter.gradients(self.optimizer, gradients)
        assert self._fixed_scale is not None
        if getattr(self.optimizer, "loss_scale", None) != self._fixed_scale:
            held.unscale(self._fixed_scale)
        held.apply()

    def _wide(self, value: object) -> object:
        adapter = self._adapter
        eligible = adapter.is_tensor(value) and adapter.dtype_of(value) in ELIGIBLE
        return adapter.cast(value, "float32") if eligible else value


@cache
def _cell_class() -> type[TrainNetwork]:
    """Return the class of train networks that are cells."""
    mindspore: Any = framework_in_use("mindspore")

    class TrainCell(TrainNetwork, mindspore.nn.Cell):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            mindspore.nn.Cell.__init__(self, auto_prefix=False)
            super().__init__(*arguments)
            self.set_train()

        def __call__(self, *inputs: object) -> object:
            # Regions and Python's control flow are not compiled: a step runs as in PyNative mode.
            if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
                return self._step(*inputs)
            return mindspore.nn.Cell.__call__(self, *inputs)

        @not_compiled(
            "a train network of unamp.dialects.mindspore takes its steps as in PyNative mode, and "
            "cannot be part of a graph; call it, in either mode, or compile a step with "
            "amp.DynamicLossScaler, amp.all_finite and amp.auto_mixed_precision"
        )
        def construct(self, *inputs: object) -> object:
            return self._step(*inputs)

    TrainCell.__name__ = TrainCell.__qualname__ = TrainNetwork.__name__
    return TrainCell


def _scaler(manager: Any) -> tuple[unamp.GradScaler, bool]:
    """Return the scaler that does what a manager says, and whether it skips steps that overflow."""
    if manager is None or not manager.get_drop_overflow_update():
        return unamp.GradScaler(enabled=False), False
    scale = float(manager.get_loss_scale())
    if not hasattr(manager, "scale_window"):
        return unamp.GradScaler(scale, dynamic=False), True
    factor = float(manager.scale_factor)
    return unamp.GradScaler(scale, factor, 1.0 / factor, manager.scale_window, minimum=1.0), True


def _effective(level: str, options: dict[str, object]) -> str:
    """Return the level that results from a level and the options that override it."""
    low = "O3" if not options.get("keep_batchnorm_fp32", level == "O2") else "O2"
    usual = "float16" if level in ("O2", "O3") else "float32"
    wanted = dtype_name(options.get("cast_model_type", usual))
    if wanted == "float16":
        return low
    if level == "O2" and low == "O3":
        return "O3"
    return "O0" if level in ("O2", "O3") else level


def _check_level(level: object, boost_level: object) -> None:
    if not isinstance(level, str):
        raise TypeError(
            f"The argument `level` must be a string in {list(_LEVELS)}, but got type {type(level)}."
        )
    if level not in _LEVELS:
        raise ValueError(f"The 'level' should be in : {list(_LEVELS)}, but got {level}.")
    if boost_level not in ("O0", "O1", "O2"):
        raise ValueError(
            f"The 'boost_level' should be in : ['O0', 'O1', 'O2'], but got {boost_level}."
        )
    if boost_level != "O0":
        raise NotExpressible(
            "boost is a library of MindSpore's own; use mindspore.amp.build_train_network for it"
        )


def _check_options(options: dict[str, object]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"Unsupported arg {name!r}; valid: {', '.join(_OPTIONS)}")
    kind = options.get("cast_model_type", "float32")
    if dtype_name(kind) not in ("float16", "float32"):
        raise TypeError(
            f"The 'cast_model_type' should be one of [float16, float32], but got {kind!r}."
        )
    keep = options.get("keep_batchnorm_fp32", False)
    if not isinstance(keep, bool):
        raise TypeError(
            f"The type of 'keep_batchnorm_fp32' should be 'bool', but got {type(keep).__name__!r}."
        )
    manager = options.get("loss_scale_manager")
    if manager is not None and not callable(getattr(manager, "get_drop_overflow_update", None)):
        raise TypeError(
            "The type of 'loss_scale_manager' should be a LossScaleManager, "
            f"but got {type(manager).__name__!r}."
        )


def _is_keras_loss(loss_fn: object) -> bool:
    keras = framework_in_use("keras")
    return keras is not None and isinstance(loss_fn, keras.losses.Loss)


def _set_train(network: object) -> None:
    """Set training mode, as MindSpore's train cell does."""
    for name in ("set_train", "train"):
        if callable(method := getattr(network, name, None)):
            method()
            return
