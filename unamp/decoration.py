"""Pure low precision: low parameters in networks, float32 master weights in optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from unamp.adapter import Adapter, Decoration, registry
from unamp.dtypes import FLOAT32, dtype_name, policy_dtype
from unamp.errors import shortened, unknown
from unamp.typing import DtypeLike, Level

Models = TypeVar("Models")
Optimizers = TypeVar("Optimizers")

#: Whether parameters are cast, by level.
_LEVELS: dict[Level, bool] = {"O0": False, "OD": False, "O1": False, "O2": True, "O3": True}

#: The dtypes in which parameters can be saved.
SAVED = ("float16", "bfloat16", "float32", "float64")


@overload
def decorate(
    models: Models,
    optimizers: None = None,
    level: Level = "O1",
    dtype: DtypeLike = "float16",
    master_weight: bool | None = None,
    save_dtype: DtypeLike | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Models: ...
@overload
def decorate(
    models: Models,
    optimizers: Optimizers,
    level: Level = "O1",
    dtype: DtypeLike = "float16",
    master_weight: bool | None = None,
    save_dtype: DtypeLike | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> tuple[Models, Optimizers]: ...
def decorate(
    models: Any,
    optimizers: Any = None,
    level: Level = "O1",
    dtype: DtypeLike = "float16",
    master_weight: bool | None = None,
    save_dtype: DtypeLike | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """Prepare networks, and the optimizers that train them, for pure low precision.

    At O2 and O3 the floating parameters are cast to the low dtype in place: they take half the
    memory, and a region has nothing left to cast. Norms that keep statistics (batch norm, instance
    norm) and `excluded_layers` stay in float32. At the other levels everything is left as it is.

    Optimizers keep their parameters, groups, schedules and hooks. They step a float32 master weight
    of each low parameter, with their state in float32 too; the parameter then takes the rounded
    value. An optimizer's `state_dict` holds the master weights, and loading it refreshes the
    networks' parameters from them.

    Args:
        models: a network, or a list or tuple of them, of a framework that is imported.
        optimizers: an optimizer, or a list or tuple of them, made for the networks' parameters.
        level: ``"O0"``, ``"OD"`` and ``"O1"`` change nothing; ``"O2"`` and ``"O3"`` do.
        dtype: the low precision. With ``"float32"`` everything is left as it is.
        master_weight: False lets optimizers step the low parameters themselves. None is True.
        save_dtype: the dtype that floating parameters have in the networks' `state_dict`; None
            keeps their own.
        master_grad: keep the gradients of low parameters in float32 from the moment that they are
            added up, for clipping and accumulation. Otherwise they become float32 only for the step
            (or for `GradScaler.unscale_`). It needs master weights.
        excluded_layers: layers or classes of layers (one, or a list or tuple) whose parameters, and
            those of the layers inside, stay in float32.

    Returns:
        The models as they were given, or where optimizers are given, a tuple of the models and the
        optimizers.

    Raises:
        TypeError: for a value that is no network, optimizer or layer of one imported framework.
        ValueError: for an unknown level or dtype, for `master_grad` without master weights, for
            parameters that are low already, and for an optimizer that has begun or is decorated
            already. Nothing is changed then.
        NotExpressible: for `master_grad`, and for a `save_dtype` other than the low dtype, in a
            framework whose gradients are values (MindSpore, TensorFlow, JAX), and for parameters
            that cannot be changed where they are; the message says what to do instead. Nothing is
            changed then.

    Semantics: https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/decorate_en.html
    """
    if level not in _LEVELS:
        raise ValueError(unknown("level", level, _LEVELS))
    if master_grad and master_weight is not None and not master_weight:
        raise ValueError(
            "master_grad goes with master weights: leave master_weight out, "
            "or leave master_grad out"
        )
    networks, steppers = _listed(models), [] if optimizers is None else _listed(optimizers)
    decoration = Decoration(
        policy_dtype(dtype),
        master_weights=master_weight is None or bool(master_weight),
        master_grad=bool(master_grad),
        save_dtype=_saved(save_dtype),
        excluded=tuple(_listed(excluded_layers)) if excluded_layers is not None else (),
    )
    adapter = _owner(networks, steppers)
    if _LEVELS[level] and decoration.dtype != FLOAT32:
        adapter.decorate(networks, steppers, decoration)
    return models if optimizers is None else (models, optimizers)


def _listed(value: Any) -> list[object]:
    # an optax transformation, which is one optimizer, is a tuple with named fields
    several = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
    return list(value) if several else [value]


def _saved(dtype: object) -> str | None:
    if dtype is None:
        return None
    name = dtype_name(dtype)
    if name not in SAVED:
        raise ValueError(
            f"save_dtype must be one of {', '.join(SAVED)}, or None; not {shortened(dtype)}"
        )
    return name


def _owner(networks: Sequence[object], optimizers: Sequence[object]) -> Adapter:
    """Return the one adapter that knows all the networks and optimizers."""
    owners = {_known(each, "network").framework for each in networks}
    if not owners:
        raise TypeError("there is no model to decorate: models is empty")
    owners |= {_known(each, "optimizer").framework for each in optimizers}
    if len(owners) > 1:
        raise TypeError(
            f"one call decorates what is of one framework, not of {' and '.join(sorted(owners))}"
        )
    return registry.adapter_for(owners.pop())


def _known(value: object, kind: str) -> Adapter:
    adapter = registry.owner(value, kind)
    if adapter is None:
        raise TypeError(
            f"{type(value).__name__} is no {kind} of a framework that is imported "
            "and has an adapter installed"
        )
    return adapter
