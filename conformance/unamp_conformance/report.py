"""``report.html``: one self-contained page that works offline, in the dark, on a phone and on paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from unamp_conformance import summary
from unamp_conformance.plan import CHECKS
from unamp_conformance.results import STATUSES, UNEXPECTED, FrameworkRun, Report, Result

__all__ = ["render", "write"]

#: What each status looks like besides its colour, for those who cannot see colours.
SIGNS = {"passed": "●", "gap": "◐", "not run": "○", "failed": "✗", "fixed": "!", "crashed": "☠", "hung": "…"}


def write(report: Report, path: Path) -> None:
    """Write the page."""
    path.write_text(render(report), "utf-8")


def render(report: Report) -> str:
    """The page's text. Everything from outside is escaped: a results file may hold any name."""
    loader = PackageLoader("unamp_conformance")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["anchor"] = _anchor
    return environment.get_template("report.html").render(
        report=report, runs=[_Section(run) for run in report.runs], signs=SIGNS, statuses=STATUSES, checks=CHECKS
    )


class _Section:
    """One framework's part of the page."""

    def __init__(self, run: FrameworkRun) -> None:
        self.run = run
        self.matrix = summary.matrix(run)
        self.operations = sorted(summary.operations(run).items())
        self.totals = summary.totals(run.results)
        self.wrong = _grouped((r for r in run.results if r.status in UNEXPECTED), "subject")
        self.gaps = _grouped((r for r in run.results if r.status == "gap"), "reason")
        self.networks = {
            name: [r for r in run.results if r.subject == name and r.check not in ("coverage", "probe")]
            for name in self.matrix.rows
        }


def _grouped(results: Iterable[Result], attribute: str) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[getattr(result, attribute)].append(result)
    return dict(found)


def _anchor(*parts: str) -> str:
    """An identifier for a place in the page."""
    return "-".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)
