"""Networks that compute under a policy: functions, modules of flax and equinox, Keras models."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax._src import core

from unamp.adapter.contract import Adapter
from unamp.adapter.patching import find
from unamp.adapter.wrapping import with_method
from unamp.networks import call_under
from unamp.policy import Policy
from unamp_jax.spellings import KerasObject, is_of, keras_in_use
from unamp_jax.state import PyTree

if TYPE_CHECKING:
    import equinox
    from flax import linen, nnx

    #: A network, or a layer with a name in it: a module of flax's or equinox's, or a layer of
    #: Keras's.
    Layer: TypeAlias = nnx.Module | linen.Module | equinox.Module | KerasObject

#: See `structure_of`.
Structure = tuple[type, Hashable]


def is_network(value: object) -> bool:
    """Return whether a value is a module of flax's or equinox's, or a model of Keras's."""
    if (
        is_of(value, "flax.nnx", "Module")
        or is_of(value, "flax.linen", "Module")
        or is_of(value, "equinox", "Module")
    ):
        return True
    return keras_in_use() and is_of(value, "keras", "Model")


def wrap(adapter: Adapter, network: Layer, policy: Policy) -> Layer:
    """Return a network that computes under a policy; see `unamp.adapter.Adapter.wrap`."""
    if is_of(network, "flax.linen", "Module"):
        return _wrap_linen(adapter, network, policy)
    again = functools.partial(adapter.wrap, policy=policy)
    method = "call" if keras_in_use() and is_of(network, "keras", "Model") else "__call__"
    return with_method(network, method, functools.partial(call_under, adapter, policy), again)


def _wrap_linen(adapter: Adapter, network: linen.Module, policy: Policy) -> linen.Module:
    """Return a linen module whose `apply` opens the region.

    Its ``__call__`` runs only inside of that.
    """
    made = network.clone()

    def apply(
        self: linen.Module, variables: Mapping[str, PyTree], *args: Any, **kwargs: Any
    ) -> PyTree:
        return call_under(
            adapter, policy, functools.partial(type(self).apply, self, variables), *args, **kwargs
        )

    object.__setattr__(made, "apply", types.MethodType(apply, made))
    return made


def named_layers(network: Layer) -> Iterable[tuple[str, Layer]]:
    """Return the layers inside a network, with their names.

    There are none for linen: its layers are named by the scopes that they open.
    """
    if is_of(network, "flax.nnx", "Module"):
        return [
            (".".join(map(str, path)), layer)
            for path, layer in inner_modules(network, find("flax", "nnx"))
        ]
    if is_of(network, "equinox", "Module"):
        return list(_inside(network, "", find("equinox", "Module")))
    return ()


def inner_modules(
    network: nnx.Module, nnx: types.ModuleType
) -> Iterator[tuple[tuple[Hashable, ...], nnx.Module]]:
    """Yield a module of nnx and the modules inside it, with their paths.

    flax has a function for it since 0.12.1.
    """
    for path, each in nnx.iter_graph(network):
        if isinstance(each, nnx.Module):
            yield path, each


def _inside(value: object, path: str, kind: type) -> Iterable[tuple[str, equinox.Module]]:
    fields: Iterable[tuple[object, object]] = ()
    if isinstance(value, kind):
        if path:
            yield path, value
        fields = vars(value).items()
    elif isinstance(value, (list, tuple)):
        fields = enumerate(value)
    elif isinstance(value, dict):
        fields = value.items()
    for name, inner in fields:
        yield from _inside(inner, f"{path}.{name}" if path else str(name), kind)


def is_layer(kind: type) -> bool:
    """Return whether a class of modules is a class of layers.

    `equinox.filter_jit` and its like return modules, too.
    """
    return not kind.__module__.startswith("equinox.") or kind.__module__.startswith("equinox.nn.")


def is_linen(layer: object) -> bool:
    """Return whether a layer is a module of flax.linen's."""
    return is_of(layer, "flax.linen", "Module")


def structure_of(network: Layer) -> Structure:
    """Return a value that is equal for copies of a network.

    It holds the network's class, and the classes of its layers by their names. Layers of linen are
    made when they are called; for such a network it holds the class and the fields.
    """
    if is_linen(network):
        fields = [
            each.name
            for each in dataclasses.fields(network)
            if each.init and each.name not in ("parent", "name")
        ]
        return type(network), tuple((name, _field(getattr(network, name, None))) for name in fields)
    return type(network), tuple(
        (name, type(layer)) for name, layer in named_layers(network) if layer is not network
    )


def arrays_of(layer: Layer) -> list[jax.Array | np.ndarray]:
    """Return the arrays that a layer of flax nnx or of equinox holds."""
    return [leaf for leaf in jax.tree.leaves(layer) if isinstance(leaf, (jax.Array, np.ndarray))]


def may_be_copy(layer: Layer, own: Layer, older: Container[jax.core.Trace] = ()) -> bool:
    """Return whether a layer may be a copy of another, made by a transformation.

    Its arrays tell: one of them is the other's, or they are tracers, or slices of the other's,
    passed on by a scan that is not compiled.

    Args:
        own: the other layer, of the same class and structure.
        older: the traces from before any transformation that could have made a copy.
    """
    arrays, others = arrays_of(layer), arrays_of(own)
    if any(one is other for one in arrays for other in others):
        return True
    return len(arrays) == len(others) and all(
        one._trace not in older if isinstance(one, core.Tracer) else _may_be_slice(one, other)
        for one, other in zip(arrays, others, strict=True)
    )


def _may_be_slice(one: jax.Array | np.ndarray, other: jax.Array | np.ndarray) -> bool:
    return bool(jax.config.jax_disable_jit) and np.shape(one) == np.shape(other)[1:] != np.shape(
        other
    )


def _field(value: object) -> Hashable:
    if is_linen(value):
        return structure_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_field, value))
    if isinstance(value, Mapping):
        return tuple((str(key), _field(inner)) for key, inner in value.items())
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
