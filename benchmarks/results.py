"""Results of a run in a file, and what became slower from one file to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Outcome, Standing

__all__ = ["Change", "changes", "read", "write"]


class Change(NamedTuple):
    """One contender in two runs: its ratio to the baseline of its comparison, and between what it surely is."""

    title: str
    name: str
    before: float
    after: float
    surely_before: tuple[float, float]
    surely_after: tuple[float, float]

    @property
    def verdict(self) -> str:
        """``"slower"`` or ``"faster"`` where the two confidence intervals leave no doubt; else nothing."""
        if self.surely_after[0] > self.surely_before[1]:
            return "slower"
        return "faster" if self.surely_after[1] < self.surely_before[0] else ""


def write(path: Path, about: dict[str, Any], standings: list[Standing]) -> None:
    """Write everything as JSON."""
    found = [
        {**asdict(s), "outcomes": [asdict(outcome) | {"verdict": outcome.verdict} for outcome in s.outcomes]} for s in standings
    ]
    path.write_text(json.dumps({"machine": about, "comparisons": found}, indent=1) + "\n", "utf-8")


def read(path: Path) -> tuple[dict[str, Any], list[Standing]]:
    """Return what `write` wrote: the machine, and the comparisons.

    Raises:
        ValueError: for a file that is none of ours.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        return data["machine"], [_standing(each) for each in data["comparisons"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of results that `python -m benchmarks --json FILE` wrote: {error}") from error


def _standing(data: dict[str, Any]) -> Standing:
    return Standing(data["title"], data["rounds"], tuple(_outcome(each) for each in data["outcomes"]))


def _outcome(data: dict[str, Any]) -> Outcome:
    known = {name: value for name, value in data.items() if name != "verdict"}
    return Outcome(**known | {name: tuple(known[name]) for name in ("quartiles", "surely")})


def changes(before: list[Standing], after: list[Standing]) -> Iterator[Change]:
    """Yield every contender that is in both runs, but for the baselines, which their ratios are to."""
    known = {(standing.title, outcome.name): outcome for standing in before for outcome in standing.outcomes}
    for standing in after:
        for outcome in standing.outcomes[1:]:
            old = known.get((standing.title, outcome.name))
            if old is not None:
                yield Change(standing.title, outcome.name, old.ratio, outcome.ratio, old.surely, outcome.surely)
