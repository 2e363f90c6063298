"""The file of a run's results, and the changes from one file to another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Outcome, Standing

__all__ = ["Change", "Run", "apart", "changes", "read", "write"]

#: The relative difference between two processes that do the same. Without it, 13 to 16 of the 34
#: ratios of three identical quick runs would count as changes; with it, 0 to 3 do.
_BETWEEN_PROCESSES = 0.05


@dataclass
class Run:
    """The measurements of a run.

    Attributes:
        machine: the hardware and the versions.
        setting: the name of the run's setting in ``conformance/machines.toml``.
        variables: the environment variables of that setting, by framework.
        sections: the wall-clock seconds of each section.
        standings: the measured comparisons.
    """

    machine: dict[str, Any]
    setting: str = "as-it-is"
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    sections: dict[str, float] = field(default_factory=dict)
    standings: list[Standing] = field(default_factory=list)


class Change(NamedTuple):
    """One contender in two runs: its ratios to its baseline, with their confidence intervals."""

    title: str
    name: str
    before: float
    after: float
    surely_before: tuple[float, float]
    surely_after: tuple[float, float]

    @property
    def verdict(self) -> str:
        """``"slower"`` or ``"faster"`` (memory: more, less) beyond the noise; else empty.

        Beyond the noise: the 95% confidence intervals of the two medians are apart by more than two
        processes differ.
        """
        if self.surely_after[0] > self.surely_before[1] * (1 + _BETWEEN_PROCESSES):
            return "slower"
        return (
            "faster"
            if self.surely_after[1] * (1 + _BETWEEN_PROCESSES) < self.surely_before[0]
            else ""
        )


def write(path: Path, run: Run) -> None:
    """Write the results as JSON."""
    found = [
        {
            **asdict(s),
            "outcomes": [asdict(outcome) | {"verdict": outcome.verdict} for outcome in s.outcomes],
        }
        for s in run.standings
    ]
    told = {
        "machine": run.machine,
        "setting": run.setting,
        "variables": run.variables,
        "sections": run.sections,
    }
    path.write_text(json.dumps({**told, "comparisons": found}, indent=1) + "\n", "utf-8")


def read(path: Path) -> Run:
    """Return the results that `write` wrote.

    Raises:
        OSError: where there is no such file.
        ValueError: where the file has no results that `write` wrote.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        return Run(
            _of(dict, data, "machine"),
            _of(str, {"setting": "as-it-is", **data}, "setting"),
            _of(dict, {"variables": {}, **data}, "variables"),
            {name: _number(_of(dict, data, "sections"), name) for name in data.get("sections", ())},
            [_standing(each) for each in _of(list, data, "comparisons")],
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is no file of results that `python -m benchmarks --json FILE` wrote: {error}"
        ) from error


def _of(kind: type, data: Any, key: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"an object with {key!r} was expected, not {str(data)[:40]!r}")
    if key not in data:
        raise ValueError(f"{key!r} is missing")
    if not isinstance(data[key], kind):
        raise ValueError(f"{key!r} must be {kind.__name__}, not {str(data[key])[:40]!r}")
    return data[key]


def _number(data: Any, key: str) -> float:
    number = _of(object, data, key)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not math.isfinite(number)
        or number < 0
    ):
        raise ValueError(f"{key!r} must be a number, 0 or more, not {str(number)[:40]!r}")
    return float(number)


def _standing(data: Any) -> Standing:
    outcomes = tuple(_outcome(each) for each in _of(list, data, "outcomes"))
    unit = _of(str, {"unit": "seconds", **data}, "unit")
    if not outcomes or unit not in ("seconds", "bytes"):
        raise ValueError(
            f"{_of(str, data, 'title')!r} has no outcomes, or a unit other than seconds and bytes: "
            f"{unit!r}"
        )
    return Standing(_of(str, data, "title"), _of(int, data, "rounds"), outcomes, unit)


def _outcome(data: Any) -> Outcome:
    # files from before the memory benchmarks have "seconds" instead of "median"
    median = _number(data, "median" if "median" in _of(object, {"": data}, "") else "seconds")
    goals = {
        name: None if data.get(name) is None else _number(data, name)
        for name in ("goal", "at_most")
    }
    return Outcome(
        _of(str, data, "name"),
        median,
        _number(data, "ratio"),
        _pair(data, "quartiles"),
        _pair(data, "surely"),
        **goals,
    )


def _pair(data: Any, key: str) -> tuple[float, float]:
    pair = _of(list, data, key)
    if len(pair) != 2:
        raise ValueError(f"{key!r} must be two numbers, not {str(pair)[:40]}")
    low, high = (_number({key: bound}, key) for bound in pair)
    return low, high


def apart(before: Run, after: Run) -> Iterator[str]:
    """Yield the reasons why two runs are not comparable: another machine, or another setting."""
    for about in ("cpu_model_name", "cpu_count"):
        old, new = before.machine.get(about), after.machine.get(about)
        if old != new:
            yield f"not the same {about}: {old} and {new}"
    if (before.setting, before.variables) != (after.setting, after.variables):
        yield f"not the same setting: {_said(before)} and {_said(after)}"


def _said(run: Run) -> str:
    if not run.variables:
        return run.setting
    said = [
        f"{framework}: {' '.join(map('='.join, of.items())) or 'none'}"
        for framework, of in run.variables.items()
    ]
    return f"{run.setting} ({'; '.join(said)})"


def changes(before: Sequence[Standing], after: Sequence[Standing]) -> Iterator[Change]:
    """Yield the change of every contender that both runs have with the same baseline.

    The baselines themselves are left out.
    """
    known = {
        (standing.title, standing.unit, standing.outcomes[0].name, outcome.name): outcome
        for standing in before
        for outcome in standing.outcomes[1:]
    }
    for standing in after:
        for outcome in standing.outcomes[1:]:
            old = known.get(
                (standing.title, standing.unit, standing.outcomes[0].name, outcome.name)
            )
            if old is not None:
                yield Change(
                    standing.title,
                    outcome.name,
                    old.ratio,
                    outcome.ratio,
                    old.surely,
                    outcome.surely,
                )
