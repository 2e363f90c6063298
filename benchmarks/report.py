"""A run's measurements, as a table for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pyperf
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Outcome, Standing

__all__ = ["machine", "show", "write"]

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
    "pyperf",
)


def machine() -> dict[str, Any]:
    """The hardware and the versions that the numbers belong to."""
    told = pyperf.Run([1.0], collect_metadata=True).get_metadata()
    wanted = ("cpu_model_name", "cpu_count", "cpu_config", "load_avg_1min", "platform", "python_version", "date")
    installed = {found.metadata["Name"].lower() for found in metadata.distributions()}
    versions = {name: metadata.version(name) for name in _PACKAGES if name in installed}
    return {name: told[name] for name in wanted if name in told} | {"versions": versions}


def show(standing: Standing, console: Console) -> None:
    """Print one comparison."""
    table = Table(title=standing.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", min_width=36)
    for heading in ("median", "ratio", "quartiles", "goal", ""):
        table.add_column(heading, justify="right", min_width=len("0.97 - 1.03") if heading == "quartiles" else 8)
    for number, outcome in enumerate(standing.outcomes):
        table.add_row(*_cells(outcome, baseline=number == 0))
    console.print(table)
    console.print()


def _cells(outcome: Outcome, *, baseline: bool) -> tuple[str, ...]:
    goal = f"<= {outcome.goal:.2f}x" if outcome.goal is not None else ""
    if outcome.at_most is not None:
        goal = f"<= {_time(outcome.at_most)}"
    colour = _COLOURS[outcome.verdict]
    verdict = f"[{colour}]{outcome.verdict}[/{colour}]"
    if baseline:
        return outcome.name, _time(outcome.seconds), "1", "", goal, verdict
    first, third = outcome.quartiles
    return outcome.name, _time(outcome.seconds), f"{outcome.ratio:.3f}x", f"{first:.2f} - {third:.2f}", goal, verdict


def _time(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def write(path: Path, about: dict[str, Any], standings: list[Standing]) -> None:
    """Write everything as JSON."""
    found = [
        {**asdict(s), "outcomes": [asdict(outcome) | {"verdict": outcome.verdict} for outcome in s.outcomes]} for s in standings
    ]
    path.write_text(json.dumps({"machine": about, "comparisons": found}, indent=1) + "\n", "utf-8")
