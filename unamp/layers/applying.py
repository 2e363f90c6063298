"""Putting rules on the layers of a network, and taking them off."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from unamp.adapter import Adapter, registry
from unamp.adapter.layers import LateNetwork, Layered
from unamp.errors import NotExpressible
from unamp.layers.late import LateRules
from unamp.layers.patterns import matches, nothing_matches
from unamp.layers.region import LayerRegion, layer_region
from unamp.layers.rules import LayerRule, LayerRules
from unamp.policy import Policy

_lock = threading.RLock()
_serials = itertools.count(1)

#: The rules that have been put on a network in this process.
_applied: set[LayerRules] = set()

#: The attribute in which a layer has the rules that were put on it: for each application its serial
#: number and its region. The last one is in force.
_RULES = "_unamp_layer_rules"


class LayerPolicies:
    """Rules in force on a network until they are removed; a context manager that removes them.

    Attributes:
        rules: the rules.
    """

    def __init__(self, network: Any, rules: LayerRules) -> None:
        self.rules = rules
        self._serial = next(_serials)
        self._late: tuple[LateNetwork, LateRules] | None = None
        self._ruled: list[object] = []
        if (late := late_network(network)) is not None:
            self._put_late(*late)
            return
        adapter = _owner(network)
        layered = _layered(adapter)
        self._network = type(network).__name__
        self._layered = layered
        found = list(_named(layered, layered.unwrapped(network)))
        names, chosen = _chosen(rules, found, self._network, layered)
        self._layers: Mapping[str, Policy | str] = MappingProxyType(names)
        regions = [
            (layer, layer_region(rule.policy, adapter.framework, rule.result))
            for layer, rule in chosen
        ]
        for layer, region in regions:
            layered.check(layer, region)
        with _lock:
            _applied.add(rules)
            self._ruled = [layer for layer, _ in regions]
            try:
                for layer, region in regions:
                    _put(layered, layer, [*vars(layer).get(_RULES, ()), (self._serial, region)])
            except BaseException:  # a class may refuse that another is derived from it
                self.remove()
                raise

    def _put_late(self, network: LateNetwork, framework: str) -> None:
        rules = LateRules(network.name, framework, self.rules)
        self._network, self._late = network.name, (network, rules)
        with _lock:
            _applied.add(self.rules)
            network.put([*network.rules, rules])

    @property
    def layers(self) -> Mapping[str, Policy | str]:
        """Return the policy (or ``"float32"``) that these rules give each layer, by layer name.

        A shared layer has an entry for each of its names. The layers of a function are the named
        scopes that its calls have opened so far.
        """
        if self._late is None:
            return self._layers
        network, rules = self._late
        return rules.layers(network.layers)

    def __repr__(self) -> str:
        return (
            f"<rules for {len(self.layers if self._late else self._ruled)} layers "
            f"of {self._network}>"
        )

    def __enter__(self) -> LayerPolicies:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Take the rules off the network; a second call does nothing.

        Rules that were put on later stay in force.
        """
        with _lock:
            if self._late is not None:
                network, rules = self._late
                network.put([each for each in network.rules if each is not rules])
            while self._ruled:
                layer = self._ruled.pop()
                _put(
                    self._layered,
                    layer,
                    [entry for entry in vars(layer).get(_RULES, ()) if entry[0] != self._serial],
                )

    def to_toml(self) -> str:
        """Return the rules as the text of a `precision.toml`; `LayerRules.from_toml` reads it."""
        return self.rules.to_toml()

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the rules as JSON, which `LayerRules.from_json` reads."""
        return self.rules.to_json(indent=indent)


def layer_policies(
    network: Any,
    rules: LayerRules | Mapping[Any, Any] | Iterable[LayerRule],
    *,
    result: str | None = None,
) -> LayerPolicies:
    """Give layers of a network policies of their own, without touching the network's code.

    A rule is about a layer and everything that it calls, in a region and without one; inside it, a
    rule of an inner layer decides. Rules change the network for all threads, until they are
    removed.

    Args:
        network: a network of a framework that is imported. On JAX also a function, or what
            `haiku.transform` returns: its layers are the scopes of `jax.named_scope` that open in
            its calls.
        rules: patterns with policies, ``{"encoder.**.norm": "float32", ":Softmax": "float32",
            "head": Policy("O1")}``, or `LayerRules`. ``"float32"`` is every operation in float32.
            Of several patterns for one layer the last one counts. See `unamp.layers.patterns` for
            what a pattern can say.
        result: ``"low"`` casts the float32 results of these layers to the low dtype that is in
            force around them. None leaves them: an operation that takes one and runs in the widest
            dtype of its inputs is then float32.

    Returns:
        A handle: a context manager, with ``layers`` (the layers found) and ``remove()``.

    Raises:
        TypeError: for a value that is no network, or no rule.
        ValueError: for a pattern that no layer matches; the message has the nearest names. Nothing
            is changed then. The layers of a function have names only while it runs: its calls raise
            the error, at their end.
        NotExpressible: where a framework cannot follow a rule on a layer. Nothing is changed then.
    """
    if not isinstance(rules, LayerRules):
        rules = LayerRules(rules, result=result)
    elif result is not None:
        raise ValueError("result goes with a mapping; LayerRules have their own")
    if not len(rules):
        raise ValueError("there is no rule: rules is empty")
    return LayerPolicies(network, rules)


def convert_network(network: object, policy: Policy) -> bool:
    """Have a network's own call run under a policy from now on.

    The rule is on the network itself, which has no name.

    Returns:
        Whether it does: a network that is a value does not change.

    Raises:
        NotExpressible: where the network cannot have a rule. Nothing is changed then.
    """
    adapter = _owner(network)
    if not hasattr(adapter, "layered"):
        return False
    layered, region = _layered(adapter), layer_region(policy, adapter.framework, None)
    if not layered.stays(network):
        return False
    layered.check(network, region)
    with _lock:
        _put(layered, network, [*vars(network).get(_RULES, ()), (next(_serials), region)])
    return True


class LayerNames(NamedTuple):
    """The layers that rules can be about.

    Attributes:
        classes: the network's class, as a trace shows it; and that of a wrapper around the network.
        first: for every name of a layer that is called, the first name of the same layer; outer
            layers come before inner ones.
        layers: the layers by their first names, and the network itself, as ``""``.
    """

    classes: tuple[str, ...]
    first: Mapping[str, str]
    layers: Mapping[str, object]


def layer_names(network: object) -> LayerNames:
    """Return the names of the layers of a network that are called when it runs.

    Raises:
        TypeError: for a value that is no network.
        NotExpressible: where the framework's layers cannot have rules.
    """
    layered = _layered(_owner(network))
    inner = layered.unwrapped(network)
    layers: dict[str, object] = {}
    first: dict[str, str] = {}
    named: dict[int, str] = {}
    for name, layer in _named(layered, inner):
        if not name or layered.runs(layer):
            first[name] = named.setdefault(id(layer), name)
            layers.setdefault(first[name], layer)
    del first[""]
    # The `__class__` of an adapter's replacement of a network is the network's class.
    return LayerNames(
        tuple({type(network).__name__: None, inner.__class__.__name__: None}), first, layers
    )


def late_network(network: object) -> tuple[LateNetwork, str] | None:
    """Return a network that names its layers only while it runs, and its framework; else None."""
    if registry.owner(network, "network") is not None:
        return None
    for adapter in registry.adapters_in_use():
        find = getattr(adapter, "late_network", None)
        found = None if find is None else find(network)
        if found is not None:
            return found, adapter.framework
    return None


@contextmanager
def noting_layers(network: LateNetwork, framework: str) -> Iterator[None]:
    """Have a network note the layers of its calls in `LateNetwork.layers`, without any rule."""
    nothing = LateRules(network.name, framework, LayerRules(()))
    with _lock:
        network.put([*network.rules, nothing])
    try:
        yield
    finally:
        with _lock:
            network.put([each for each in network.rules if each is not nothing])


def ever_applied(rules: LayerRules) -> bool:
    """Return whether rules have been put on a network in this process."""
    return rules in _applied


def _put(layered: Layered, layer: object, rules: list[tuple[int, LayerRegion]]) -> None:
    if rules:
        vars(layer)[_RULES] = rules
    else:
        vars(layer).pop(_RULES, None)
    layered.put(layer, rules[-1][1] if rules else None)


def _owner(network: object) -> Adapter:
    adapter = registry.owner(network, "network")
    if adapter is None:
        raise TypeError(
            "network must be a torch.nn.Module, paddle.nn.Layer, mindspore.nn.Cell, keras.Model, "
            "or a module of flax or equinox, of a framework that is imported and has an adapter "
            f"installed; not {type(network).__name__}. On JAX rules for layers take a function "
            "with named scopes (of a method, Class.method), and what haiku.transform returns"
        )
    return adapter


def _layered(adapter: Adapter) -> Layered:
    make = getattr(adapter, "layered", None)
    if make is None:
        raise NotExpressible(
            f"the adapter for {adapter.framework} has no rules for layers (`layered` of "
            "unamp.adapter.layers.HasLayers); open a region in the layer's own code instead"
        )
    layered: Layered = make()
    return layered


def _named(
    layered: Layered, layer: object, path: tuple[str, ...] = (), above: tuple[int, ...] = ()
) -> Iterator[tuple[str, object]]:
    """Yield a network as ``""`` and every layer inside under each of its names.

    A shared layer has several names.
    """
    yield ".".join(path), layer
    for name, inner in layered.inner(layer):
        if id(inner) not in above:  # a layer may hold its owner
            yield from _named(layered, inner, (*path, name), (*above, id(layer)))


def _chosen(
    rules: LayerRules, layers: list[tuple[str, object]], network: str, layered: Layered
) -> tuple[dict[str, Policy | str], list[tuple[object, LayerRule]]]:
    """Return the policies of layers by their names, and the layers with their rules.

    Raises:
        ValueError: for a pattern that no layer matches.
    """
    chosen: dict[int, tuple[object, LayerRule]] = {}
    for rule in rules:
        matched = [(name, layer) for name, layer in layers if matches(rule.pattern, name, layer)]
        if not matched:
            raise ValueError(nothing_matches(rule.pattern, network, layers))
        called = [layer for _, layer in matched if layered.runs(layer)]
        if not called:
            name, layer = matched[0]
            raise ValueError(
                f"{rule.pattern!r} matches {name!r}, a {layer.__class__.__name__}, which is never "
                f"called itself: name what is in it, {f'{name}.*'!r}"
            )
        chosen.update((id(layer), (layer, rule)) for layer in called)
    names = {name: chosen[id(layer)][1].policy for name, layer in layers if id(layer) in chosen}
    return names, list(chosen.values())
