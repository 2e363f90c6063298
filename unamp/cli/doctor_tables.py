"""Print the findings of `unamp.cli.doctor`: the frameworks, the machine that they compute on, and what adapters cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from unamp.adapter import machine
from unamp.cli import printing
from unamp.dtypes import LOW_DTYPES

__all__ = ["show_frameworks", "show_gaps", "show_machine"]

_Report = dict[str, Any]


def show_frameworks(reports: Sequence[_Report]) -> None:
    """Print every framework, with how each device computes in each dtype."""
    table = Table("framework", "version", "device", *LOW_DTYPES, title="what runs here, and how")
    for report in reports:
        if report["status"] != "ready":
            table.add_row(report["framework"], report["status"], report["advice"])
            continue
        for device, support in report["devices"].items():
            words = [support[dtype] for dtype in LOW_DTYPES] if support else ["device not present"]
            how = map(printing.support, words)
            table.add_row(report["framework"], report["version"], _named(device, report), *how)
    printing.show(table)


def _named(device: str, report: _Report) -> str:
    """Return a kind of device with the framework's own word for it, where that is another."""
    word = report.get("device names", {}).get(device, device)
    return device if word == device else f"{device} ({word})"


def show_machine(found: _Report) -> None:
    """Print the instruction sets of the processor, those that each framework uses, and the variables that change them."""
    printing.say(f"the processor: {found['processor'] or 'not told by this system'}")
    printing.say(f"it has: {' '.join(found['instruction sets']) or 'not told by this system'}", indent=2)
    for report in found["frameworks"]:
        if told := report.get("runtime"):
            facts = ", ".join(f"{name.replace('_', ' ')}: {machine.said(fact)}" for name, fact in told.items())
            printing.say(f"{report['framework']} computes with: {facts}")
        if faster := report.get("faster"):
            printing.say(faster, indent=2)
    variables = " ".join(map("=".join, found["variables"].items()))
    printing.say(f"variables that change it: {variables or 'none is set'}")


def show_gaps(reports: Sequence[_Report], *, listed: bool) -> None:
    """Print the number of things that adapters cannot do; or the list of them."""
    count = sum(len(report.get("gaps", ())) for report in reports)
    if count and not listed:
        printing.say(f"{count} things cannot be done; unamp doctor --gaps lists them, with the reasons")
    for report in reports if listed else ():
        if gaps := report.get("gaps", ()):
            printing.say(f"\n{report['framework']} cannot do:")
        for gap in gaps:
            printing.say(f"- {gap['what']}: {gap['reason']} {gap['link']}".rstrip(), indent=2)
