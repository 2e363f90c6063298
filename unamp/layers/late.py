"""Rules for a network whose layers have names only while it runs: a function with named scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unamp.errors import NotExpressible
from unamp.layers.patterns import matches_names, nothing_matches
from unamp.layers.region import LayerRegion, layer_region
from unamp.layers.rules import LayerRules
from unamp.policy import Policy


class LateRules:
    """Rules that find their layers while the network runs; equal by value.

    See `unamp.adapter.layers.LateRules`.

    Args:
        network: the network's name, for messages.
        framework: its framework.
        rules: the rules.

    Raises:
        NotExpressible: for a rule with a layer's class or result: a named scope has neither.
    """

    def __init__(self, network: str, framework: str, rules: LayerRules) -> None:
        for rule in rules:
            if ":" in rule.pattern:
                raise NotExpressible(
                    f"{rule.pattern!r} names a class, and the layers of {network} are named "
                    "scopes, which have none; name the scopes, as a trace does: '**.linear'"
                )
            if rule.result is not None:
                raise NotExpressible(
                    f"the rule for {rule.pattern!r} has result={rule.result!r}, and the layers of "
                    f"{network} are named scopes, which have no result; cast what the scope "
                    "computes in its code, or leave result out"
                )
        self._network = network
        self._rules = rules
        self._regions = [(rule, layer_region(rule.policy, framework, None)) for rule in rules]

    def __eq__(self, other: object) -> bool:
        return self._rules == other._rules if isinstance(other, LateRules) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rules)

    def region(self, name: str) -> LayerRegion | None:
        """Return the region of a layer; None where it has no rule."""
        return next(
            (
                region
                for rule, region in reversed(self._regions)
                if matches_names(rule.pattern, name, None)
            ),
            None,
        )

    def layers(self, names: Iterable[str]) -> Mapping[str, Policy | str]:
        """Return the policies of layers, by name; a layer without a rule is left out."""
        found = ((name, self.region(name)) for name in names)
        return {name: region.rule for name, region in found if region is not None}

    def check(self, names: Iterable[str]) -> None:
        """Check that every pattern matches a layer.

        Args:
            names: the names of all layers that were ever called in the network.

        Raises:
            ValueError: for a pattern that matches none; the message has the nearest names.
        """
        there = list(names)
        for rule in self._rules:
            if not any(matches_names(rule.pattern, name, None) for name in there):
                said = nothing_matches(
                    rule.pattern, self._network, [(name, None) for name in there]
                )
                raise ValueError(
                    f"{said} (the layers of a function are the named scopes that open in its calls)"
                )
