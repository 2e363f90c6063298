"""The measurements of a run, as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table
from unamp_conformance.machine import gpus

from benchmarks.measure import Outcome, Standing
from benchmarks.results import Change
from unamp.adapter import machine as told

__all__ = ["amount", "machine", "show", "show_changes"]

_COLOURS = {"pass": "green", "close": "yellow", "miss": "red", "": "default"}
_PACKAGES = (
    "unamp",
    "torch",
    "paddlepaddle",
    "mindspore",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "jaxlib",
    "keras",
    "numpy",
)


def machine() -> dict[str, Any]:
    """Return the hardware and the versions of this machine."""
    return {
        "cpu_model_name": told.processor(),
        "cpu_count": os.cpu_count(),
        "gpus": gpus(),
        "instruction_sets": [name for name, there in told.instruction_sets().items() if there],
        "variables": told.variables(),
        "load_avg_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python_version": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of unamp and of the measured packages."""
    names = {
        found.metadata["Name"].lower().replace("_", "-"): found.version
        for found in metadata.distributions()
    }
    return {name: names[name] for name in _PACKAGES if name in names}


def show(standing: Standing, console: Console) -> None:
    """Print the table of one comparison."""
    table = Table(
        title=standing.title, title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.add_column("", min_width=36)
    for heading in ("median", "ratio", "quartiles", "goal", ""):
        table.add_column(
            heading, justify="right", min_width=len("0.97 - 1.03") if heading == "quartiles" else 8
        )
    for number, outcome in enumerate(standing.outcomes):
        table.add_row(*_cells(outcome, standing.unit, baseline=number == 0))
    console.print(table)
    console.print()


def _cells(outcome: Outcome, unit: str, *, baseline: bool) -> tuple[str, ...]:
    size = amount(outcome.median, unit)
    goal = f"<= {outcome.goal:.2f}x" if outcome.goal is not None else ""
    if outcome.at_most is not None:
        goal = f"<= {amount(outcome.at_most, unit)}"
    colour = _COLOURS[outcome.verdict]
    verdict = f"[{colour}]{outcome.verdict}[/{colour}]"
    if baseline:
        return outcome.name, size, "1", "", goal, verdict
    first, third = outcome.quartiles
    return outcome.name, size, f"{outcome.ratio:.3f}x", f"{first:.2f} - {third:.2f}", goal, verdict


def amount(number: float, unit: str) -> str:
    """Return seconds or bytes as text."""
    if unit == "bytes":
        return f"{number / 1e6:.0f} MB"
    for name, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number / 1e-9:.0f} ns"


def show_changes(found: Iterable[Change], console: Console) -> None:
    """Print the rows that became slower or faster by more than the noise."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "before", "after", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for change in found:
        colour = "red" if change.verdict == "slower" else "green"
        interval = " - ".join(f"{bound:.2f}" for bound in change.surely_after)
        table.add_row(
            f"{change.title}: {change.name}",
            f"{change.before:.3f}x",
            f"{change.after:.3f}x ({interval})",
            f"[{colour}]{change.verdict}[/{colour}]",
        )
    console.print(table)
