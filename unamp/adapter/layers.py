"""Rules for single layers: the optional part of an adapter, and classes derived from layers' own.

An adapter that can give a layer a policy of its own has a method ``layered()``, as `HasLayers` has
it. The core finds the layers that a rule is about; the adapter has a layer run in the rule's
region, without touching the layer's code.
"""

from __future__ import annotations

import copyreg
import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.framework_types import Layer
from unamp.adapter.patching import Patches
from unamp.adapter.wrapping import derived_class
from unamp.errors import NotExpressible
from unamp.policy import Policy

#: The name of the attribute, in a layer's ``__dict__``, that holds the region of its rule.
REGION = "_unamp_layer_region"

#: The attribute, of a class that `derive` made, that holds the class it is derived from.
_PLAIN = "_unamp_without_rule"


class LayerRegion(Protocol):
    """A rule, ready to be put in force around a layer's call. There is one object for each rule."""

    @property
    def rule(self) -> Policy | str:
        """A policy, or ``"float32"``."""

    @property
    def result(self) -> str | None:
        """``"low"`` where the layer's result goes back to the low dtype around it, else None."""

    def policy(self, dtype: str | None = None) -> Policy:
        """Return the policy in force inside, given the dtype of the policy around."""

    def here(self) -> AbstractContextManager[object]:
        """Return the context manager to enter, which a framework's compiler can follow."""

    def finished(self, result: object, args: Args, kwargs: Keywords) -> object:
        """Return a layer's result, cast as `result` says; called after the region is closed."""


class Layered(Protocol):
    """The access to a framework's layers that rules for layers need."""

    def unwrapped(self, network: Layer) -> Layer:
        """Return the network inside a wrapper that only calls it, else the given network.

        Data-parallel training has such wrappers, for instance.
        """
        return network

    def stays(self, network: Layer) -> bool:
        """Return whether a network is an object that keeps a rule itself.

        A network that is a value has its rules in common with its copies.
        """
        return True

    def inner(self, layer: Layer) -> Iterable[tuple[str, Layer]]:
        """Return the layers directly inside a layer, with the names that a trace shows."""

    def runs(self, layer: Layer) -> bool:
        """Return whether a layer is called when its network runs; a mere list of layers is not."""

    def check(self, layer: Layer, region: LayerRegion) -> None:
        """Check that a layer can have a rule.

        Raises:
            NotExpressible: where it cannot.
        """

    def put(self, layer: Layer, region: LayerRegion | None) -> None:
        """Have a layer run in a region, which replaces an earlier one; None takes it away."""


class HasLayers(Protocol):
    """The optional part of an `unamp.adapter.Adapter`."""

    def layered(self) -> Layered:
        """Return the object that gives layers rules."""


class LateRules(Protocol):
    """Rules for layers that have names only while their network runs. Equal by value."""

    def region(self, name: str) -> LayerRegion | None:
        """Return the region of a layer; None where it has no rule."""

    def check(self, names: Iterable[str]) -> None:
        """Check that every pattern matches one of the layers ever called in the network.

        Raises:
            ValueError: where one is not.
        """


class LateNetwork(Protocol):
    """A network whose layers have names only while it runs; one object for each network.

    The optional method ``late_network(value)`` of an adapter returns it; None for another value.
    """

    @property
    def name(self) -> str:
        """The network's name, for messages."""

    @property
    def layers(self) -> Collection[str]:
        """The names of the layers called while the network had rules, outer ones first."""

    @property
    def rules(self) -> Sequence[LateRules]:
        """The network's rules."""

    def put(self, rules: Sequence[LateRules]) -> None:
        """Have the network's calls follow rules; of several for a layer, the last one.

        The rules are checked after a call.
        """


class RulesInForce:
    """The rules that a framework's layers have, for adapters whose compiler does not notice them.

    Attributes:
        key: a part for the key of whatever the compiler keeps, equal where the same layers have the
            same rules; None where no layer has one.
        used: whether any layer has ever had a rule, which its copies may still have.
    """

    def __init__(self) -> None:
        self.used = False
        self.key: frozenset[tuple[int, LayerRegion]] | None = None
        # The layers that are alive, by id, each with its rule and a number. An id may be another
        # layer's later; a number is not given twice.
        self._known: dict[int, tuple[weakref.ref[object], int, LayerRegion | None]] = {}
        self._numbers = itertools.count()
        self._hooked = False

    def put(self, layer: object, region: LayerRegion | None, hooks: Patches | None = None) -> None:
        """Note the rule of a layer.

        Args:
            layer: the layer.
            region: its rule; None for none.
            hooks: the patches that put `key` into the compiler's keys while there are rules; None
                where that code is always in place.
        """
        self.used = True
        own, number, _ = self._known.get(id(layer)) or (
            weakref.ref(layer, self._gone),
            next(self._numbers),
            None,
        )
        self._known[id(layer)] = own, number, region
        self._make_key()
        if hooks is None or self._hooked is (self.key is not None):
            return
        self._hooked = not self._hooked
        if self._hooked:
            hooks.acquire()
        else:
            hooks.release()

    def _gone(self, layer: weakref.ref[object]) -> None:
        for place, (own, *_) in list(self._known.items()):
            if own is layer:
                del self._known[place]
        self._make_key()

    def _make_key(self) -> None:
        self.key = (
            frozenset(
                (n, region) for _, n, region in list(self._known.values()) if region is not None
            )
            or None
        )


def excluded_layers(
    excluded: Iterable[object], kind: type, what: str
) -> tuple[set[int], tuple[type, ...]]:
    """Return the layers that `unamp.decorate` leaves in float32: ids of single ones, and classes.

    Args:
        excluded: the layers and classes.
        kind: the framework's class of layers.
        what: what may be excluded, for the message.

    Raises:
        TypeError: for anything else.
    """
    for each in excluded:
        if not isinstance(each, kind) and not (isinstance(each, type) and issubclass(each, kind)):
            raise TypeError(f"excluded_layers takes {what}, not {each!r:.200}")
    return {id(each) for each in excluded if isinstance(each, kind)}, tuple(
        each for each in excluded if isinstance(each, type)
    )


def put_by_class(
    layer: object, region: LayerRegion | None, derived: Callable[[type], type]
) -> None:
    """Give a layer a class derived from its own, whose method runs in a region.

    Without a region, that class is taken away. A method of the instance would not do: a copy of the
    layer would compute with the first one's parameters. Nor would hooks: compilers do not notice
    new ones, and some frameworks do not call them after an exception.

    Args:
        layer: the layer.
        region: the region; None for none.
        derived: returns the class derived from a layer's own, as `derive` makes it.
    """
    kind = type(layer)
    if region is None:
        vars(layer).pop(REGION, None)
        if _PLAIN in vars(kind):
            # a class that somebody has derived from ours since stays, and does nothing
            _set_class(layer, vars(kind)[_PLAIN])
        return
    vars(layer)[REGION] = region
    if not hasattr(kind, _PLAIN):
        _set_class(layer, derived(kind))


#: Sets an object's class. A plain assignment may be intercepted by the object's class.
_set_class: Callable[[object, type], None] = vars(object)["__class__"].__set__


@cache
def derive(plain: type, method: str, check: Callable[..., None] | None = None) -> type:
    """Return a class derived from a layer's, whose method runs in the region that the layer has.

    It has the name of the layer's class. Copies and pickles of a layer are made from its state, and
    have its rule.

    Args:
        plain: the layer's own class.
        method: what the framework calls when a layer runs.
        check: called before each call, with the layer and the arguments; it raises where the rule
            would be lost.
    """
    body = {
        method: in_region(plain, method, check),
        _PLAIN: plain,
        "__reduce_ex__": lambda self, protocol: _reduced(
            self, (plain, method, check), super(made, self).__reduce_ex__
        ),
    }
    made: Any = derived_class(plain, body)
    return made  # type: ignore[no-any-return]


@cache
def in_region(plain: type, method: str, check: Callable[..., None] | None = None) -> Function:
    """Return a function of a layer that calls its class's method in the region that the layer has.

    Args:
        plain: the layer's own class.
        method: the method's name.
        check: as `derive` takes it.
    """
    import inspect  # slow to import

    own = getattr(plain, method)

    def under(self: object, *args: Any, **kwargs: Any) -> Any:
        region = getattr(self, REGION, None)
        # The method is looked up at each call: an open region may have replaced it.
        if region is None:
            return getattr(plain, method)(self, *args, **kwargs)
        if check is not None:
            check(self, *args, **kwargs)
        with region.here():
            result = getattr(plain, method)(self, *args, **kwargs)
        if region.result is None:
            return result
        return region.finished(result, args, kwargs)

    under.__doc__ = own.__doc__
    # No `__wrapped__`: compilers would take that function for this one.
    under.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    return under


def _reduced(
    layer: object, kind: tuple[object, ...], own: Callable[[int], Iterable[Any]]
) -> tuple[object, ...]:
    """Return the reduction by which a layer with a rule is copied and pickled.

    Its derived class cannot be found by a name.
    """
    make, given, *state = own(2)
    if make is not copyreg.__newobj__ or given != (type(layer),):  # type: ignore[attr-defined]
        raise NotExpressible(
            f"{type(layer).__name__} is copied and pickled in a way of its own, which would lose "
            "its rule; remove the rule before, and put it on the copy"
        )
    return (_new, kind, *state)


def _new(plain: type, method: str, check: Callable[..., None] | None) -> object:
    made: Any = derive(plain, method, check)
    return made.__new__(made)
