"""Cast networks to low parameters, and make optimizers step master weights: `unamp.decorate`.

The parameter objects stay the same, in the network and in the optimizer. During an optimizer's step
its float32 master weights take the places of its parameters. Its own state is float32, since it was
made before the parameters became low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
import numpy as np
from mindspore import ParameterTuple, nn
from mindspore.experimental.optim.optimizer import Optimizer as GroupedOptimizer
from mindspore.mint.nn.layer.normalization import _NormBase
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from unamp.adapter import Decoration
from unamp.adapter.layers import excluded_layers
from unamp.adapter.state import suspended
from unamp.adapter.wrapping import derived_class
from unamp.errors import NotExpressible
from unamp_mindspore.casting import cast
from unamp_mindspore.exchange import Exchange
from unamp_mindspore.state import DTYPES, FLOAT32, LOW, NAMES, Parameter, Tensor, thread

#: MindSpore's base classes of optimizers.
OPTIMIZERS = (nn.Optimizer, GroupedOptimizer)

if TYPE_CHECKING:
    #: An optimizer of either kind.
    Optimizer: TypeAlias = nn.Optimizer | GroupedOptimizer

_NORMS = (_BatchNorm, nn.BatchNorm3d, _InstanceNorm, _NormBase)


def decorate(
    networks: Sequence[nn.Cell], optimizers: Sequence[Optimizer], decoration: Decoration
) -> None:
    """See `unamp.adapter.Adapter.decorate`."""
    _check_expressible(decoration)
    parameters = _to_cast(networks, decoration.excluded)
    _check_new(parameters, optimizers)

    for parameter in parameters:
        if parameter.has_init:
            parameter.init_data()
    chosen = {id(parameter) for parameter in parameters}
    # Master weights are made first, from numbers that are not rounded yet.
    steppers = optimizers if decoration.master_weights else ()
    stepped = [
        [(p, _master(p) if id(p) in chosen else p) for p in optimizer.parameters]
        for optimizer in steppers
    ]
    for parameter in parameters:
        parameter.set_dtype(DTYPES[decoration.dtype])
    for optimizer, pairs in zip(steppers, stepped, strict=True):
        _attach(optimizer, pairs)


def have_master_weights(optimizer: object) -> tuple[bool, ...]:
    """Return, for each parameter of an optimizer, whether it has a master weight."""
    if not isinstance(optimizer, _MasterWeights):
        return ()
    return tuple(low is not master for low, master in _pairs(optimizer))


# --- checks ---------------------------------------------------------------------------------------


def _check_expressible(decoration: Decoration) -> None:
    if decoration.master_grad:
        raise NotExpressible(
            "MindSpore's gradients are values, in the dtype of their parameter (master_grad): cast "
            "them to float32 where you add them up; GradScaler.unscale_ and the optimizer take "
            "them in float32 already"
        )
    if decoration.save_dtype not in (None, decoration.dtype):
        raise NotExpressible(
            "mindspore.save_checkpoint saves a parameter in the dtype that it has "
            f"(save_dtype={decoration.save_dtype!r}): "
            "hand it a list of {'name': ..., 'data': ...} with what you cast, or save the "
            "optimizer and its master weights"
        )


def _to_cast(networks: Sequence[nn.Cell], excluded: Sequence[object]) -> list[Parameter]:
    """Return the parameters that become low."""
    instances, chosen = excluded_layers(
        excluded, nn.Cell, "cells and classes of cells of MindSpore"
    )
    # A parameter that is shared with a layer that stays float32 stays float32, too.
    kept = {
        id(parameter)
        for network in networks
        for _, cell in network.cells_and_names()
        if id(cell) in instances or isinstance(cell, (*_NORMS, *chosen))
        for parameter in _parameters(cell)
    }
    found = {id(each): each for network in networks for each in _parameters(network)}
    return [each for key, each in found.items() if key not in kept and each.dtype in NAMES]


def _parameters(cell: nn.Cell) -> Iterator[Parameter]:
    """Yield the parameters of a cell and of the cells inside it."""
    for _, each in cell.cells_and_names():
        yield from (parameter for parameter in each._params.values() if parameter is not None)


def _check_new(parameters: Sequence[Parameter], optimizers: Sequence[Optimizer]) -> None:
    for parameter in parameters:
        if parameter.dtype in LOW:
            raise ValueError(
                f"parameter {parameter.name} is {NAMES[parameter.dtype]} already; decorate a "
                "network whose parameters are float32, once"
            )
    for optimizer in optimizers:
        if isinstance(optimizer, _MasterWeights):
            raise ValueError(f"{type(optimizer).__name__} has been decorated already")
        if any(_begun(holder) for holder in _holders(optimizer)):
            raise ValueError(
                f"{type(optimizer).__name__} has begun; decorate it before its first step"
            )


def _begun(optimizer: Optimizer) -> bool:
    steps = getattr(optimizer, "global_step", None)
    if steps is not None:
        return bool(steps.asnumpy().any())
    # Other optimizers count steps in several ways. But new state has one number in all places.
    states = [
        each
        for name, held in vars(optimizer).items()
        if name != "parameters" and isinstance(held, ParameterTuple)
        for each in held
    ]
    return any(np.ptp(state.asnumpy()) != 0 for state in states)


# --- optimizers -----------------------------------------------------------------------------------


def _holders(optimizer: Optimizer) -> list[Optimizer]:
    """Return an optimizer and any optimizer inside it: `nn.LARS` has one."""
    return [
        optimizer,
        *(
            cell
            for _, cell in optimizer.cells_and_names()
            if isinstance(cell, OPTIMIZERS) and cell is not optimizer
        ),
    ]


class _MasterWeights:
    """The methods that are put before those of an optimizer's own class."""

    def __call__(
        self: Optimizer, gradients: Tensor | Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            raise NotExpressible(_REFUSED)
        exchange: Exchange = vars(self)["_unamp_exchange"]
        given = (gradients,) if isinstance(gradients, Tensor) else gradients
        with suspended(thread):
            exchange.catch_up()
            with _with_masters_in_place(
                self, {id(parameter): master for parameter, master in _pairs(self)}
            ):
                result = self(tuple(cast(each, FLOAT32) for each in given), *args, **kwargs)
            exchange.round()
        return result

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        raise ValueError(
            "a compiled graph cannot step the master weights of unamp.decorate; call the optimizer "
            "outside of the function that mindspore.jit compiles, or decorate with "
            "master_weight=False"
        )


_REFUSED = (
    "a compiled graph cannot step the master weights of unamp.decorate; call the optimizer in "
    "PYNATIVE_MODE, or decorate with master_weight=False"
)


@cache
def _with_masters(kind: type) -> type:
    return derived_class(kind, {}, (_MasterWeights,))  # type: ignore[no-any-return]


def _attach(optimizer: Optimizer, pairs: list[tuple[Parameter, Parameter]]) -> None:
    made = [master for parameter, master in pairs if master is not parameter]
    if not made:
        return
    # As an attribute of the cell, a tuple of parameters is saved in checkpoints.
    optimizer.master_weights = ParameterTuple(made)
    vars(optimizer)["_unamp_pairs"] = pairs
    vars(optimizer)["_unamp_exchange"] = Exchange(
        [(low, master) for low, master in pairs if master is not low]
    )
    kind: type = type(optimizer)
    optimizer.__class__ = _with_masters(kind)


def _pairs(optimizer: Optimizer) -> list[tuple[Parameter, Parameter]]:
    return vars(optimizer)["_unamp_pairs"]  # type: ignore[no-any-return]


def _master(parameter: Parameter) -> Parameter:
    return Parameter(parameter.copy(), name=f"master_weight.{parameter.name}", requires_grad=False)


@contextmanager
def _with_masters_in_place(
    optimizer: Optimizer, instead: Mapping[int, Parameter]
) -> Iterator[None]:
    """Give an optimizer its own class again, and master weights in its parameters' places."""
    before = [(vars(holder), dict(vars(holder))) for holder in _holders(optimizer)]
    kind = type(optimizer)
    try:
        for attributes, original in before:
            attributes.update(_exchanged(original, lambda each: instead.get(id(each), each)))
        optimizer.__class__ = kind.__mro__[2]
        yield
    finally:
        optimizer.__class__ = kind
        for attributes, original in before:
            for name in _exchanged(original, lambda each: each):
                attributes[name] = original[name]


def _exchanged(
    attributes: Mapping[str, Any], exchange: Callable[[Parameter], Parameter]
) -> dict[str, object]:
    """Return the attributes that hold parameters, with these exchanged for others."""
    found: dict[str, object] = {}
    for name, value in attributes.items():
        if name == "master_weights":
            continue
        if isinstance(value, ParameterTuple):
            found[name] = ParameterTuple(exchange(each) for each in value)
        elif (
            isinstance(value, (list, tuple))
            and value
            and all(isinstance(each, Parameter) for each in value)
        ):
            found[name] = type(value)(exchange(each) for each in value)
        elif name == "param_groups":
            found[name] = [
                {**group, "params": [exchange(each) for each in group["params"]]} for group in value
            ]
    return found
