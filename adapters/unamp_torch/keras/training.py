"""Training with Keras' optimizers on PyTorch: their gradients, and the master weights they step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from unamp.adapter import Decoration, keras_models
from unamp.adapter.keras_masters import (
    MasterWeights,
    check_new,
    give_master_weights,
    has_master_weights,
    rebuild,
    stepped,
    with_inner,
    with_masters,
)
from unamp.adapter.keras_models import (
    check_float32,
    check_saved,
    compute_low,
    keras_on,
    layers_to_cast,
    library,
    named_variables,
    own_variables,
)
from unamp_torch.backward import suspended
from unamp_torch.state import LOW, dtype_name


def is_optimizer(value: object) -> bool:
    """Return whether a value is one of Keras' optimizers, where Keras computes with PyTorch."""
    return keras_on("torch") and isinstance(value, library().optimizers.Optimizer)


def is_layer(value: object) -> bool:
    """Return whether a value is a layer or a model of Keras', where Keras computes with PyTorch."""
    return keras_models.is_layer(value, "torch")


def trained_parameters(network: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters inside a network's trainable variables, with the variables' names."""
    return [(name, _inside(variable)) for name, variable in named_variables(network)]


# --- gradients ------------------------------------------------------------------------------------


class KerasGradients:
    """See `unamp.adapter.Gradients`: those in an optimizer's variables, or those handed over.

    They are in the order of the optimizer's variables; None for a variable without one.
    """

    def __init__(self, optimizer: Any, given: Iterable[torch.Tensor | None] | None) -> None:
        self._optimizer = optimizer
        self._held = given is None
        if given is None and not optimizer.built:
            raise RuntimeError(
                f"{optimizer.name} does not know its variables yet: call "
                "optimizer.build(model.trainable_variables) before the first step, or hand the "
                "gradients over, as in step(optimizer, variables, gradients=gradients)"
            )
        self._given = self._of_variables() if given is None else _listed(given)
        self._widened = has_master_weights(optimizer)
        self._finite: torch.Tensor | None = None

    @property
    def values(self) -> list[torch.Tensor | None] | None:
        """The gradients where they were handed over; None where variables hold them."""
        return None if self._held else self._given

    @values.setter
    def values(self, given: Iterable[torch.Tensor | None]) -> None:
        self._given = _listed(given)

    def _of_variables(self) -> list[torch.Tensor | None]:
        return [_inside(variable).grad for variable in stepped(self._optimizer)]

    def dtypes(self) -> frozenset[str]:
        found = {each.dtype for each in self._given if each is not None}
        return frozenset(
            "float32" if self._widened and dtype in LOW else dtype_name(dtype) for dtype in found
        )

    @torch.no_grad()
    def unscale(self, scale: float) -> None:
        there = [each for each in self._given if each is not None]
        if there:
            self._finite = torch.stack([torch.isfinite(each).all() for each in there]).all()
        given = map(_wide, self._given) if self._widened else self._given
        self._given = [None if each is None else each * (1.0 / scale) for each in given]
        if self._held:
            for variable, gradient in zip(stepped(self._optimizer), self._given, strict=True):
                if gradient is not None:
                    parameter = _inside(variable)
                    if gradient.dtype is not parameter.dtype:
                        # None allows any dtype; gradients that are added to it stay low, as before
                        parameter.grad_dtype = None
                    parameter.grad = gradient

    def overflow(self) -> bool | None:
        return None if self._finite is None else not bool(self._finite)

    def first_nonfinite(self, network: object) -> str | None:
        for variable, gradient in zip(stepped(self._optimizer), self._given, strict=True):
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                return str(getattr(variable, "path", variable))
        return None

    def apply(self, *args: Any, **kwargs: Any) -> object:
        # From the variables again: somebody may have clipped the gradients there.
        return self._optimizer.apply(
            self._of_variables() if self._held else self._given, *args, **kwargs
        )


def _inside(variable: Any) -> torch.Tensor:
    """Return the parameter inside a Keras variable, past every cast."""
    found: torch.Tensor = getattr(variable, "_value", variable)
    return found


def _wide(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return a gradient in float32 where it is low; what is not low, and None, as it is."""
    return gradient.float() if gradient is not None and gradient.dtype in LOW else gradient


def _listed(given: Iterable[torch.Tensor | None]) -> list[torch.Tensor | None]:
    alone = isinstance(given, torch.Tensor)
    values = [] if alone else list(given)
    wrong = (
        given
        if alone
        else next(
            (each for each in values if not isinstance(each, (torch.Tensor, type(None)))), None
        )
    )
    if wrong is not None:
        raise TypeError(
            "gradients must be a list of tensors, in the order of the optimizer's variables; "
            f"got a {type(wrong).__name__}{'' if alone else ' in it'}"
        )
    return values


# --- low parameters -------------------------------------------------------------------------------


def check(
    networks: Sequence[torch.nn.Module],
    optimizers: Sequence[Any],
    decoration: Decoration,
) -> tuple[list[torch.nn.Module], set[int]]:
    """Return the layers of models that become low, and the ids of variables that stay in float32.

    Raises:
        NotExpressible: for a ``save_dtype`` that Keras cannot save in.
        TypeError, ValueError: as `unamp.decorate` says.
    """
    if networks:
        check_saved(decoration)
    layers, kept = layers_to_cast(networks, decoration.excluded) if networks else ([], set())
    check_float32(layers)
    for optimizer in optimizers:
        for inner in with_inner(optimizer):
            check_new(inner, int(inner._iterations.value))
    return layers, kept


def lower(
    networks: Sequence[torch.nn.Module],
    layers: Sequence[torch.nn.Module],
    kept: set[int],
    dtype: str,
) -> Iterator[torch.Tensor]:
    """Yield the parameters to cast, and set the dtypes of Keras' variables for them.

    Keras' variable stays the same object, and so does the parameter inside.

    Args:
        networks: the models.
        layers, kept: what `check` returned for them.
        dtype: the low dtype's name.
    """
    for layer in layers:
        for variable in own_variables(layer):
            if (
                id(variable) not in kept
                and variable._value is not None
                and variable._dtype == "float32"
            ):
                variable._dtype = dtype
                yield variable._value
    compute_low(networks, layers, dtype)


def give_masters(optimizers: Sequence[Any], weights: dict[torch.Tensor, torch.Tensor]) -> None:
    """Make Keras' optimizers step master weights, which start from parameters before the cast."""
    steppers = [inner for optimizer in optimizers for inner in with_inner(optimizer)]
    for optimizer in steppers:
        give_master_weights(optimizer, TorchMasters, ())
        vars(optimizer)["_unamp_weights"] = weights
    rebuild(optimizers, steppers, ())
    for optimizer in steppers:
        if optimizer.built:
            vars(optimizer).pop("_unamp_weights", None)


class TorchMasters(MasterWeights):
    """See `unamp.adapter.keras_masters.MasterWeights`."""

    def _unamp_suspended(self) -> AbstractContextManager[None]:
        return suspended()

    def _unamp_master(self, parameter: Any, original: object) -> Any:
        value = _inside(parameter)
        start = vars(self).get("_unamp_weights", {}).get(value)
        if start is None:
            start = value.detach().float()
        return self.add_variable(
            parameter.shape,
            initializer=lambda shape, dtype: start,
            dtype="float32",
            name="_".join(
                (getattr(parameter, "path", parameter.name).replace("/", "_"), "master_weight")
            ),
        )

    def _unamp_wide(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return _wide(gradient)

    @torch.no_grad()
    def _unamp_catch_up(self, master: Any, parameter: Any) -> None:
        wide, low = _inside(master), _inside(parameter)
        rounded = wide.to(low.dtype)
        if not torch.equal(rounded, low):
            wide.copy_(torch.where(rounded == low, wide, low.float()))

    @torch.no_grad()
    def _unamp_round(self, parameter: Any, master: Any) -> None:
        _inside(parameter).copy_(_inside(master))


if keras_on("torch"):
    # Then Keras can load an optimizer of any class that another process saved.
    with_masters(library().optimizers.SGD, TorchMasters)
