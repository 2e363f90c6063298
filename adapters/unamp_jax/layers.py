"""Rules for single layers of flax and equinox, whose networks are values.

Copies of a layer come and go. So a rule belongs to a name in a network of one structure: a copy of
the layer has it, too, also one that a transformation made again from its leaves. The rules of the
process are a part of the key of JAX's caches, as the plan is. So is the network where a thread is
and, in linen, the rules inside the thread's layer: no program traced under other rules is found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import jax
from jax._src import core

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.keras_layers import KerasLayers
from unamp.adapter.layers import LayerRegion, RulesInForce
from unamp.adapter.patching import find
from unamp.adapter.replacing import as_replacement
from unamp.amp_warnings import called_apart, no_layer_of_network
from unamp.errors import NotExpressible
from unamp_jax.networks import (
    Structure,
    arrays_of,
    is_layer,
    is_linen,
    may_be_copy,
    named_layers,
    structure_of,
)
from unamp_jax.spellings import KerasObject, is_of
from unamp_jax.state import PyTree
from unamp_jax.training import layer_calls

if TYPE_CHECKING:
    from flax import linen

    from unamp_jax.networks import Layer

#: The regions of layers, by the structure of their network and by their names in it.
Rules = Mapping[Structure, Mapping[str, LayerRegion]]
Relative = frozenset[tuple[str, LayerRegion]]

#: Rules as a part of every key: the process' rules, or inside a network with rules also
#: where the thread is.
_KEY = jax.make_user_context(None)


class _Layer:
    """The place of a layer in every network of one structure; rules are put on it.

    The network itself has the name ``""``.
    """

    def __init__(
        self,
        structure: Structure,
        kind: type | None,
        names: tuple[str, ...],
        inner: Iterable[tuple[str, _Layer]] = (),
    ) -> None:
        self.structure = structure
        self.kind = kind
        self.names = names
        self.inner = tuple(inner)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the layers at this place, for which patterns ask."""
        if self.kind is None:
            raise NotExpressible(
                "layers of flax.linen have no class before they are called; "
                "name them, as a trace does: '**.Dense_*'"
            )
        return self.kind


#: The networks seen so far, as long as somebody refers to one of their layers.
_networks: WeakValueDictionary[Structure, _Layer] = WeakValueDictionary()


class JaxLayers(KerasLayers):
    """See `unamp.adapter.layers.Layered`.

    Layers of Keras are objects that stay, and have their rules themselves.
    """

    def __init__(self) -> None:
        super().__init__(_in_force.put_keras)

    def unwrapped(self, network: Layer) -> KerasObject | _Layer:
        return network if _is_keras(network) else _place(network)

    def stays(self, network: Layer) -> bool:
        return _is_keras(network)

    def inner(self, layer: KerasObject | _Layer) -> Iterable[tuple[str, KerasObject | _Layer]]:
        return layer.inner if type(layer) is _Layer else super().inner(layer)

    def runs(self, layer: KerasObject | _Layer) -> bool:
        if type(layer) is not _Layer:
            return super().runs(layer)
        return layer.kind is None or any("__call__" in vars(kind) for kind in layer.kind.__mro__)

    def check(self, layer: KerasObject | _Layer, region: LayerRegion) -> None:
        if type(layer) is not _Layer:
            super().check(layer, region)

    def put(self, layer: KerasObject | _Layer, region: LayerRegion | None) -> None:
        if type(layer) is _Layer:
            _in_force.put(layer, region)
        else:
            super().put(layer, region)


def _is_keras(network: Layer) -> bool:
    return is_of(network, "keras", "layers.Layer")


# --- which network, and which of its layers -------------------------------------------------------


def _place(network: Layer) -> _Layer:
    structure = structure_of(network)
    place = _networks.get(structure)
    if place is None:
        place = _networks[structure] = _Layer(structure, type(network), ("",))
    known = {inner.names: inner for _, inner in place.inner}
    # Made anew for each network: one of a structure may share layers where another has several, or
    # have other variables.
    place.inner = tuple(
        (_linen_layers if is_linen(network) else _layers)(structure, network, known)
    )
    return place


Known = Mapping[tuple[str, ...], _Layer]


def _layers(structure: Structure, network: Layer, known: Known) -> list[tuple[str, _Layer]]:
    names: dict[int, tuple[str, ...]] = {}
    there = [(name, layer) for name, layer in named_layers(network) if layer is not network]
    for name, layer in there:
        names[id(layer)] = (*names.get(id(layer), ()), name)
    places = {
        id(layer): known.get(own := names[id(layer)]) or _Layer(structure, type(layer), own)
        for _, layer in there
    }
    return [(name, places[id(layer)]) for name, layer in there]


def _linen_layers(
    structure: Structure, network: linen.Module, known: Known
) -> list[tuple[str, _Layer]]:
    if network.scope is None:
        raise NotExpressible(
            f"a {type(network).__name__} of flax.linen has no layers before it has variables; "
            "give layer_policies network.bind(variables), and call the network as before"
        )
    paths: dict[str, None] = {}
    for collection in network.variables.values():
        _scopes(collection, (), paths)
    return [(path, known.get((path,)) or _Layer(structure, None, (path,))) for path in paths]


def _scopes(variables: Mapping[str, PyTree], path: tuple[str, ...], paths: dict[str, None]) -> None:
    for name, inner in variables.items():
        if isinstance(inner, Mapping):
            paths[".".join((*path, name))] = None
            _scopes(inner, (*path, name), paths)


# --- rules in force -------------------------------------------------------------------------------


class _InForce:
    """The rules of this process, as a value that is replaced as a whole."""

    def __init__(self) -> None:
        self.rules: Rules = {}
        # of layers with rules: a network's class, and the layer's name in it
        self.kinds: Mapping[type, tuple[str, str]] = {}
        self._places: dict[_Layer, LayerRegion] = {}  # keeps the places alive while they have rules
        self._keras = RulesInForce()

    def put(self, place: _Layer, region: LayerRegion | None) -> None:
        """Make a layer of every network of one structure run in a region; None: without one."""
        before = bool(self._places)
        self._places.pop(place, None)
        if region is not None:
            self._places[place] = region
        rules: dict[Structure, dict[str, LayerRegion]] = {}
        for each, own in self._places.items():
            rules.setdefault(each.structure, {}).update(dict.fromkeys(each.names, own))
        self.rules = rules
        named = [
            (each.kind, (each.structure[0].__name__, each.names[0]))
            for each in self._places
            if each.names[0]
        ]
        self.kinds = {kind: where for kind, where in named if kind is not None}
        self._set_key()
        if bool(self._places) is not before:
            (_calls.release if before else _calls.acquire)()

    def put_keras(self, layer: KerasObject, region: LayerRegion | None) -> None:
        """Note the rule that a layer of Keras has."""
        self._keras.put(layer, region)
        self._set_key()

    def _set_key(self) -> None:
        named = frozenset(
            (place.structure, place.names, region) for place, region in self._places.items()
        )
        key = named, self._keras.key
        _KEY._obj.set_global(key if any(key) else None)


_in_force = _InForce()


class _Inside(threading.local):
    """The place where a thread is.

    Attributes:
        network: the innermost network with rules that the thread is in; None outside.
        others: the number of nested calls of layers that it is in, outside of such networks.
    """

    network: _Network | None = None
    others: int = 0


class _Network:
    """One call of a network with rules.

    Attributes:
        strangers: the number of nested calls in this one of layers that are not the network's.
    """

    def __init__(
        self, network: Layer, structure: Structure, rules: Mapping[str, LayerRegion]
    ) -> None:
        self.structure = structure
        self.strangers = 0
        self._network = network
        self._rules = rules
        self._linen = network.path if is_linen(network) and network.scope is not None else None
        there = (
            ()
            if is_linen(network)
            else [(n, layer) for n, layer in named_layers(network) if layer is not network]
        )
        self._layers = [("", network), *there]
        self._names: dict[int, str | None] = {id(layer): name for name, layer in self._layers}
        # layers that are not the network's stay alive as long as their ids are keys
        self._kept: list[Layer] = []
        # A transformation inside of the call has a trace of its own; tracers of these older traces
        # are what the call was given.
        self._older = core.unsafe_get_trace_stack(core.unsafe_get_current_trace())

    def name(self, layer: Layer) -> str | None:
        """Return the name of one of the network's layers; None for any other layer.

        Raises:
            NotExpressible: for a copy of several layers that have different rules.
        """
        if is_linen(layer):
            return self._name_in_scopes(layer)
        if id(layer) not in self._names:
            self._copied(layer)
        return self._names[id(layer)]

    def _name_in_scopes(self, layer: linen.Module) -> str | None:
        """Return the name of a layer of linen: its path from the network; None outside of it.

        The path alone does not tell: in a network that is applied inside another, paths begin anew.
        """
        start = self._linen
        if start is None or layer.scope is None or layer.path[: len(start)] != start:
            return None
        outermost = layer
        while len(outermost.path) > len(start) and is_linen(outermost.parent):
            outermost = outermost.parent
        # A lifted transformation makes a layer again, with its path but with no module as parent.
        is_other = len(outermost.path) == len(start) and outermost is not self._network
        if is_other and structure_of(outermost) != self.structure:
            return None
        return ".".join(layer.path[len(start) :])

    def _copied(self, layer: Layer) -> None:
        """Note the name of the layer that another one is a copy of.

        A transformation makes its arguments anew.
        """
        like = structure_of(layer)
        alike = [
            (name, own)
            for name, own in self._layers
            if type(own) is type(layer) and structure_of(own) == like
        ]
        without_arrays = not arrays_of(layer)
        if without_arrays and self.strangers:  # only arrays tell a copy from a stranger's layer
            alike = []
        names = [name for name, own in alike if may_be_copy(layer, own, self._older)]
        if len({self.within(name) for name in names}) > 1:
            raise NotExpressible(
                f"{' and '.join(map(repr, names[:3]))} have different rules, and inside a "
                "transformation of JAX that is handed the layer nobody can tell which of them it "
                "is; transform the whole network's call, close over the layer, "
                "or give them one rule"
            )
        ruled = next((name for name, _ in alike if self.within(name)), None)
        if not names and ruled is not None and not self.strangers:
            no_layer_of_network(type(layer).__name__, self.structure[0].__name__, ruled)
        self._note(layer, names[0] if names else None)
        for name, inner in named_layers(layer) if names else ():
            if inner is not layer:
                self._note(inner, ".".join(filter(None, (names[0], name))))

    def _note(self, layer: Layer, name: str | None) -> None:
        self._names[id(layer)] = name
        self._kept.append(layer)

    def is_stranger(self, layer: Layer) -> bool:
        """Return whether a foreign layer has none of the network's layers inside, nor copies."""
        if is_linen(layer):
            return False
        own = {id(array) for array in arrays_of(self._network)}
        arrays = arrays_of(layer)
        return bool(arrays) and not any(
            id(array) in own or (isinstance(array, core.Tracer) and array._trace not in self._older)
            for array in arrays
        )

    def within(self, name: str) -> Relative:
        """Return the regions of a layer and of those inside, by their names relative to its own."""
        return frozenset(
            (own[len(name) :], region)
            for own, region in self._rules.items()
            if own == name or not name or own.startswith(f"{name}.")
        )

    def region(self, name: str | None) -> LayerRegion | None:
        """Return the region of a layer by its name; None where it has no rule."""
        return None if name is None else self._rules.get(name)


_inside = _Inside()


def _entered(layer: Layer) -> _Network | None:
    """Return the network with rules that a layer is, or is called in."""
    rules = _in_force.rules
    if any(kind is type(layer) for kind, _ in rules):
        structure = structure_of(layer)
        if structure in rules:
            return _Network(layer, structure, rules[structure])
    return _inside.network


@as_replacement
def _following(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Stand in for a layer class's ``__call__``."""
    network = _entered(args[0])
    if network is None:
        return _apart(original, args, kwargs)
    name = network.name(args[0])
    region = network.region(name)
    outer, _inside.network = _inside.network, network
    stranger = name is None and network.is_stranger(args[0])
    network.strangers += stranger
    try:
        inside = network.within(name) if name is not None and is_linen(args[0]) else None
        with _keyed(network, inside), region.here() if region else nullcontext():
            result = original(*args, **kwargs)
    finally:
        network.strangers -= stranger
        _inside.network = outer
    if region is None or region.result is None:
        return result
    return region.finished(result, args[1:], kwargs)


def _apart(original: Function, args: Args, kwargs: Keywords) -> PyTree:
    """Call a layer outside of every network with rules; warn where it may be a layer of one."""
    kind = type(args[0])
    if not is_layer(kind):
        return original(*args, **kwargs)
    if _inside.others == 0 and kind in _in_force.kinds:
        called_apart(kind.__name__, *_in_force.kinds[kind])
    _inside.others += 1
    try:
        return original(*args, **kwargs)
    finally:
        _inside.others -= 1


def _keyed(network: _Network, inside: Relative | None) -> AbstractContextManager[object]:
    """Return the context of a layer's call.

    `inside` tells layers apart that JAX's caches would take for one.
    """
    made: AbstractContextManager[object] = _KEY((_KEY._obj.get_global(), network.structure, inside))
    return made


def _homes() -> list[type | None]:
    return [find("flax.nnx", "Module"), find("flax.linen", "Module"), find("equinox", "Module")]


#: The patches that follow the calls of layers while there are rules: of the classes that
#: exist then.
_calls = layer_calls(_homes, _following)
