"""The result of a search, for people and for files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from unamp._version import __version__
from unamp.layers.rules import LayerRule, LayerRules
from unamp.policy import Policy
from unamp.precision import Precision
from unamp.tracing.tables import text_table
from unamp.tuning.places import Place
from unamp.tuning.reports import TuneReport, plain
from unamp.tuning.subject import in_force


class Tuned:
    """The cheapest policy that was found, with rules for layers, and the reasons.

    Attributes:
        policy: the policy to put in force.
        layers: the rules for layers, for `unamp.layer_policies`; may be empty.
        report: the report of the search.
    """

    def __init__(
        self, policy: Policy, layers: LayerRules, reasons: Mapping[str, str], report: TuneReport
    ) -> None:
        self.policy, self.layers, self.report = policy, layers, report
        self._reasons = dict(reasons)

    def __repr__(self) -> str:
        return f"<Tuned: {self.report.lines()[0]}>"

    @property
    def precision(self) -> Precision:
        """The policy, the rules and the reasons, as a `precision.toml` holds them."""
        report = self.report
        reason = (
            f"unamp {__version__} tuned it: error {report.error:.2g} of {report.tolerance:.2g} "
            f"allowed, {report.low:.1%} of the work in {self.policy.dtype}"
        )
        return Precision(self.policy, self.layers, reason=reason, reasons=self._reasons)

    def region(self, network: Any = None) -> AbstractContextManager[None]:
        """Return a context manager that puts the rules on a network, and the policy in force."""
        if network is None and len(self.layers):
            raise ValueError("there are rules for layers: name the network, region(network)")
        return in_force(network, self.policy, list(self.layers))

    def table(self) -> str:
        """Return the exceptions as plain text, with remarks on the whole search below."""
        rows = [
            (place.layer or "-", place.op, f"{place.share:.1%}", place.why)
            for place in self.report.held
        ]
        head = (
            [text_table(("layer", "operation", "work", "why it stays in float32"), rows)]
            if rows
            else []
        )
        return "\n".join([*head, *self.report.lines()])

    def to_toml(self) -> str:
        """Return the text of a `precision.toml`, which `unamp.Precision` reads."""
        return self.precision.to_toml()

    def to_html(self, *, title: str = "unamp tune") -> str:
        """Return the search as one self-contained HTML page.

        Raises:
            ModuleNotFoundError: where jinja2 is not installed.
        """
        from unamp.tuning import as_page

        return as_page.render(self.report, self.to_toml(), title)

    def to_data(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON; an error that is not finite becomes None."""
        return {
            "policy": self.policy.to_data(),
            "layers": self.layers.to_data(),
            "report": plain(self.report),
        }


def with_reasons(rules: list[LayerRule], why: Mapping[Place, str]) -> LayerRules:
    """Return rules, each with the reasons of the places that it holds."""
    found = []
    for rule in rules:
        denied = rule.policy.deny if isinstance(rule.policy, Policy) else None
        said = [
            f"{place.op}: {reason}"
            for place, reason in why.items()
            if place.layer == rule.pattern and (denied is None or place.op in denied)
        ]
        found.append(rule._replace(reason="; ".join(said) or "as without the rule around"))
    return LayerRules(found)
