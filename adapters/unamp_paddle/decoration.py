"""Cast layers to low parameters, and make optimizers step master weights: `unamp.decorate`.

A decorated layer or optimizer gets a class derived from its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import paddle
from paddle.base.dygraph import Tracer
from paddle.base.framework import _dygraph_guard
from paddle.nn import Layer
from paddle.nn.layer.norm import _BatchNormBase

from unamp.adapter import Decoration
from unamp.adapter.layers import excluded_layers
from unamp.adapter.wrapping import derived_class
from unamp.amp_warnings import unknown_masters
from unamp_paddle.casting import narrow
from unamp_paddle.exchange import alias, exchange_memory
from unamp_paddle.hooks import HOOKS
from unamp_paddle.masters import (
    MASTER_WEIGHTS,
    Masters,
    add_up_wide,
    assign_master,
    check_masters,
    low_parameters,
    parameters,
)
from unamp_paddle.programs import refuse_decoration
from unamp_paddle.state import DTYPES, FLOAT32, LOW, NAMES, Tensor, dtype_of

if TYPE_CHECKING:
    from paddle.optimizer import Optimizer

# The function itself, not the module's attribute, which a region replaces.
_cast = paddle._C_ops.cast

#: Norms that keep statistics. (Paddle's instance norm keeps none.)
_STATISTICS = (_BatchNormBase, paddle.nn.BatchNorm)


def decorate(
    networks: Sequence[Layer], optimizers: Sequence[Optimizer], decoration: Decoration
) -> None:
    """See `unamp.adapter.Adapter.decorate`."""
    refuse_decoration()
    chosen = _to_cast(networks, decoration.excluded)
    loaded: dict[str, Tensor | np.ndarray] = {}
    for optimizer in optimizers:
        _check_fresh(optimizer)
        if decoration.master_weights:
            loaded |= _loaded(optimizer)
    weights = {
        id(parameter): _lower(parameter, decoration, loaded.get(parameter.name))
        for parameter in chosen
    }
    if decoration.master_weights or not paddle.is_compiled_with_cuda():
        # On the CPU there are no low kernels.
        for optimizer in optimizers:
            _adopt(optimizer, weights, kept=decoration.master_weights)
    for network in networks:
        own: type = type(network)
        network.__class__ = _decorated_network(own)
        if decoration.save_dtype is not None:
            network.register_state_dict_hook(partial(_save_as, network, decoration.save_dtype))


def _to_cast(networks: Iterable[Layer], excluded: tuple[object, ...]) -> list[Tensor]:
    """Return the parameters to cast, each once.

    Raises:
        TypeError: where something excluded is neither a layer nor a class of layers.
        ValueError: where a parameter is already low, or a network is a `paddle.DataParallel`.
    """
    kept = {
        id(parameter) for layer in _kept(networks, excluded) for parameter in layer.parameters()
    }
    chosen = {}
    for network in networks:
        if isinstance(network, paddle.DataParallel):
            raise ValueError(
                "decorate the layer itself, and make the paddle.DataParallel of it after that"
            )
        for name, parameter in network.named_parameters():
            if id(parameter) in kept:
                continue
            if parameter.dtype in LOW:
                raise ValueError(
                    f"parameter {name} is {NAMES[parameter.dtype]} already: decorate makes "
                    "parameters low itself, and keeps what they were as master weights"
                )
            if dtype_of(parameter) is FLOAT32:
                chosen[id(parameter)] = parameter
    return list(chosen.values())


def _kept(networks: Iterable[Layer], excluded: tuple[object, ...]) -> Iterator[Layer]:
    """Return the layers that stay in float32, with all layers inside them."""
    instances, classes = excluded_layers(excluded, Layer, "paddle.nn.Layers and classes of them")
    for network in networks:
        for layer in network.sublayers(include_self=True):
            if (
                isinstance(layer, (*_STATISTICS, *classes))
                or id(layer) in instances
                or _gives_sparse_gradients(layer)
            ):
                yield layer


def _gives_sparse_gradients(layer: Layer) -> bool:
    # Paddle has no cast for sparse gradients, and its CPU no low kernels that would make them.
    return (
        isinstance(layer, paddle.nn.Embedding)
        and HOOKS.attribute(layer, "_sparse")
        and not paddle.is_compiled_with_cuda()
    )


def _check_fresh(optimizer: Optimizer) -> None:
    if hasattr(optimizer, "_unamp_masters"):
        raise ValueError(f"this {type(optimizer).__name__} is decorated already")
    if HOOKS.attribute(optimizer, "_accumulators"):
        raise ValueError(
            f"this {type(optimizer).__name__} has taken steps: decorate it before its first, or "
            "load its state into a new one"
        )


def _loaded(optimizer: Optimizer) -> dict[str, Tensor | np.ndarray]:
    """Return the master weights that an optimizer loaded before, by its parameters' names.

    Raises:
        ValueError: where the shape of one is not its parameter's.
    """
    weights = HOOKS.attribute(optimizer, "_master_weights")
    own = {parameter.name for parameter in parameters(optimizer)}
    known = {name: weight for name, weight in weights.items() if name in own}
    check_masters(optimizer, known)
    if lost := sorted(weights.keys() - own):
        unknown_masters(lost)
    return known


def _lower(parameter: Tensor, decoration: Decoration, loaded: Tensor | np.ndarray | None) -> Tensor:
    """Cast a parameter in place, and return its master weight.

    The master weight is the parameter's float32 value, or the weight that was loaded for it.
    """
    low = DTYPES[decoration.dtype]
    with paddle.no_grad():
        master = alias(parameter)
        if loaded is not None:
            assign_master(loaded, master)
        exchange_memory(parameter, narrow(master, low))
        gradient = parameter._grad_ivar()
        if gradient is not None and dtype_of(gradient) is FLOAT32 and not decoration.master_grad:
            exchange_memory(gradient, narrow(gradient, low))
    if decoration.master_grad and not parameter.stop_gradient:
        add_up_wide(parameter)
    return master


def _save_as(network: Layer, dtype: str, state_dict: dict[str, object]) -> None:
    """Cast a network's floating parameters in its ``state_dict``.

    The dictionary may also hold entries of a larger network, which stay as they are.
    """
    # `paddle.jit.save` asks for the dictionary in static mode.
    with nullcontext() if paddle.in_dynamic_mode() else _dygraph_guard(Tracer()):
        layers = network.sublayers(include_self=True)
        statistics = {
            id(HOOKS.attribute(layer, name))
            for layer in layers
            if isinstance(layer, _STATISTICS)
            for name in ("_mean", "_variance")
        }
        own = {each.data_ptr() for each in network.parameters() if id(each) not in statistics}
        for name, value in state_dict.items():
            if _is_floating(value) and value.data_ptr() in own:
                wide = _cast(value.detach(), FLOAT32)
                state_dict[name] = saved = narrow(wide, getattr(paddle, dtype))
                saved.name = value.name


def _is_floating(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and bool(value.is_floating_point())


class _Network:
    """The methods put before those of a network's class, which load values of other dtypes.

    Paddle loads values of a parameter's own dtype only.
    """

    _unamp_class: type

    def set_state_dict(
        self: Layer, state_dict: dict[str, object], use_structured_name: bool = True
    ) -> object:
        given = dict(state_dict)
        for name, own in self.state_dict(use_hook=False).items():
            key = name if use_structured_name else own.name
            if key in given and own.dtype in NAMES:
                given[key] = _as(given[key], dtype_of(own))
        return super().set_state_dict(given, use_structured_name)  # type: ignore[misc]

    set_dict = load_dict = set_state_dict

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _new, (self._unamp_class,), vars(self)


def _as(value: object, dtype: paddle.dtype) -> object:
    """Return a loaded value, in a parameter's dtype if the value is floating."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = paddle.to_tensor(value)
    if _is_floating(value) and dtype_of(value) is not dtype:
        return narrow(_cast(value.detach(), FLOAT32), dtype)
    return value


def _new(own: type) -> Layer:
    decorated: Any = _decorated_network(own)
    return decorated.__new__(decorated)


@cache
def _decorated_network(own: type) -> type:
    """Return the class of a decorated network, with the name of the network's own class."""
    if issubclass(own, _Network):
        return own
    return derived_class(own, {"_unamp_class": own}, (_Network,))  # type: ignore[no-any-return]


def _adopt(optimizer: Optimizer, weights: dict[int, Tensor], *, kept: bool) -> None:
    """Have an optimizer step master weights.

    Args:
        optimizer: the optimizer; its class changes.
        weights: the float32 values of parameters before they became low, by the parameters' ids.
        kept: False forgets master weights after each step, so that the low parameters are the
            state, and only the step computes in float32.
    """
    own = (
        ((p, weights[id(p)]) for p in low_parameters(optimizer) if id(p) in weights) if kept else ()
    )
    optimizer._master_weights = {parameter.name: weight for parameter, weight in own}
    optimizer._unamp_masters = Masters(optimizer, kept=kept)
    kind: type = type(optimizer)
    optimizer.__class__ = _decorated_optimizer(kind)


class _Optimizer:
    """The methods put before those of an optimizer's own class."""

    _unamp_masters: Masters

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return self._unamp_masters.call(super().step, args, kwargs)  # type: ignore[misc]

    def minimize(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return self._unamp_masters.call(super().minimize, args, kwargs)  # type: ignore[misc]

    def apply_gradients(self: Optimizer, params_grads: Iterable[tuple[Tensor, Tensor]]) -> object:
        with self._unamp_masters.exchanged():
            wide = [
                (parameter, _cast(g, FLOAT32) if g.dtype in LOW else g)
                for parameter, g in params_grads
            ]
            return super().apply_gradients(wide)  # type: ignore[misc]

    def state_dict(self: Optimizer) -> dict[str, Any]:
        self._unamp_masters.follow()
        return super().state_dict()  # type: ignore[misc, no-any-return]

    def set_state_dict(self: Optimizer, state_dict: dict[str, Any]) -> None:
        masters, weights = self._unamp_masters, state_dict.get(MASTER_WEIGHTS, {})
        check_masters(self, weights)
        with masters.exchanged():
            rest = {name: each for name, each in state_dict.items() if name != MASTER_WEIGHTS}
            super().set_state_dict(rest)  # type: ignore[misc]
            masters.load(weights)

    load_state_dict = set_state_dict


@cache
def _decorated_optimizer(own: type) -> type:
    """Return the class of a decorated optimizer, with the name of the optimizer's own class.

    The name stays because Paddle's optimizers look at it.
    """
    return derived_class(own, {}, (_Optimizer,))  # type: ignore[no-any-return]
