"""The findings of a run, as values, and the versioned file that keeps them.

The file's layout is ``data/results.schema.json``; `unamp_conformance.reading` reads it and trusts
nothing in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from unamp.adapter import Fact

__all__ = [
    "READABLE",
    "SCHEMA",
    "SIGNS",
    "STATUSES",
    "UNEXPECTED",
    "BadResults",
    "Finding",
    "FrameworkRun",
    "Report",
    "Result",
    "Verdict",
    "save",
    "sayable",
]

#: The version of the file's layout. A reader refuses every other one.
SCHEMA = 3

#: The versions that a reader takes. Before 2 there was no status "not applicable"; before 3 there
#: were no ways, and with them no status "lost" and none "refused".
READABLE = (1, 2, SCHEMA)

#: The statuses of a check, each with its meaning.
STATUSES = {
    "passed": "as the policy says",
    "refused": (
        "this way of the framework is refused before anything is computed, as the adapter says"
    ),
    "lost": (
        "in this way of the framework the policy is lost in silence: another precision, "
        "and no error"
    ),
    "failed": "not as the policy says",
    "gap": "failed, as the file of known gaps says",
    "fixed": "passes although the file of known gaps says that it fails",
    "not applicable": (
        "the framework has no such operation or cannot run it in this way, "
        "or the policy says nothing about it"
    ),
    "not run": "the device is absent, or the framework's process ended before",
    "crashed": "the framework's process died in this check",
    "hung": "the framework's process did not finish this check in time",
}

#: The sign of each status beside its colour, for readers who cannot see colours.
SIGNS = {
    "passed": "●",
    "refused": "⊘",
    "gap": "◐",
    "not applicable": "·",
    "not run": "○",
    "lost": "▼",
    "failed": "✗",
    "fixed": "!",
    "crashed": "☠",
    "hung": "…",
}

#: The statuses that make a run fail.
UNEXPECTED = frozenset({"lost", "failed", "fixed", "crashed", "hung"})


class Verdict(IntEnum):
    """The verdict on a whole run.

    The value is the command's exit status; 2 is that of wrong arguments.
    """

    CONFORMS = 0
    DOES_NOT_CONFORM = 1
    COULD_NOT_RUN = 3
    NOTHING_SELECTED = 4

    def __str__(self) -> str:
        return {
            Verdict.CONFORMS: "conforms",
            Verdict.DOES_NOT_CONFORM: "does not conform",
            Verdict.COULD_NOT_RUN: "could not run",
            Verdict.NOTHING_SELECTED: "nothing was selected",
        }[self]


class BadResults(ValueError):
    """A results file is damaged, or of another version."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, before it has a place in a report.

    It has a status of `STATUSES`, a message, and observations.
    """

    status: str
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The outcome of one check.

    Attributes:
        check: what was checked, e.g. ``"probe"`` or ``"gradients"``.
        subject: the operation, network or behaviour.
        policy: the policy's short name, e.g. ``"O1 bfloat16 unamp"`` or ``"deny float16"``.
        device: ``"cpu"`` or ``"gpu"``.
        status: one of `STATUSES`.
        message: what is wrong, for a person; empty where nothing is.
        reason: the reason of a known gap.
        details: observations; ``error`` and ``bound`` where numbers were compared, ``trace`` where
            one helps.
        seconds: how long it took.
        way: the way of the framework in which the subject ran, where that is what was checked.
    """

    check: str
    subject: str
    policy: str
    device: str
    status: str
    message: str = ""
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    way: str = ""

    @property
    def key(self) -> str:
        """The name of the check, the same in every run."""
        return (
            f"{self.check}/{f'{self.way}/' * bool(self.way)}"
            f"{self.subject}/{self.policy}/{self.device}"
        )


@dataclass(frozen=True)
class FrameworkRun:
    """One framework's part of a run: where it ran, and how that ended.

    `ended` is ``"finished"``, or says what went wrong.

    The facts are those of `unamp.adapter.machine.facts`, the variables those of the environment
    that change them.
    """

    framework: str
    version: str
    device: str
    ended: str
    results: tuple[Result, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    facts: Mapping[str, Fact] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def compares(self) -> bool:
        """Return whether it compares two frameworks with each other."""
        return " and " in self.framework

    @property
    def ok(self) -> bool:
        """Return whether it ran, or had no device to run on, and nothing failed unexpectedly."""
        return self.ended in ("finished", "not run") and not self.wrong

    @property
    def wrong(self) -> bool:
        """Return whether anything failed unexpectedly."""
        return bool(self.problems) or any(r.status in UNEXPECTED for r in self.results)


@dataclass(frozen=True)
class Report:
    """A whole run: where and when, and every framework's part."""

    unamp: str
    started: str
    host: Mapping[str, str]
    selection: Mapping[str, Any]
    runs: tuple[FrameworkRun, ...]

    @property
    def ok(self) -> bool:
        """Return whether nothing failed unexpectedly, and anything ran at all."""
        return self.verdict is Verdict.CONFORMS

    @property
    def verdict(self) -> Verdict:
        """The verdict on the run; a failure weighs more than a part that could not run."""
        if any(run.wrong for run in self.runs):
            return Verdict.DOES_NOT_CONFORM
        statuses = {result.status for run in self.runs for result in run.results} - {
            "not applicable"
        }
        could_not = all(run.ended == "not run" for run in self.runs) or statuses == {"not run"}
        if could_not or not all(run.ok for run in self.runs):
            return Verdict.COULD_NOT_RUN
        return Verdict.CONFORMS if statuses else Verdict.NOTHING_SELECTED


def sayable(result: Result) -> dict[str, Any]:
    """Return a result as JSON: empty fields are left out."""
    return {name: value for name, value in vars(result).items() if value not in ("", {}, 0.0)}


def save(report: Report, path: Path) -> None:
    """Write a report as JSON; make the folder where there is none.

    Empty fields of results are left out.
    """
    runs = [{**vars(run), "results": list(map(sayable, run.results))} for run in report.runs]
    text = {**vars(report), "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"schema": SCHEMA, **text}, indent=1, allow_nan=False) + "\n", "utf-8"
    )
