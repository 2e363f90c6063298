"""Results gathered for people: matrices of networks and ways, operations, what went wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unamp.policy import LEVELS
from unamp_conformance.results import UNEXPECTED, FrameworkRun, Result
from unamp_conformance.subjects import is_absent

__all__ = ["Cell", "Matrix", "matrix", "operations", "totals", "unexpected", "unread", "ways"]


@dataclass(frozen=True)
class Cell:
    """Several results as one: how many of each status."""

    counts: Mapping[str, int]

    @property
    def status(self) -> str:
        """The worst of the statuses."""
        order = (
            "lost",
            "crashed",
            "hung",
            "failed",
            "fixed",
            "not run",
            "gap",
            "refused",
            "passed",
            "not applicable",
        )
        return next((status for status in order if self.counts.get(status)), "not run")


@dataclass(frozen=True)
class Matrix:
    """A table of cells.

    Rows are networks and behaviours, or ways; columns are levels with dtypes.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]


def totals(results: Iterable[Result]) -> Counter[str]:
    """Return the number of results of each status."""
    return Counter(result.status for result in results)


def unexpected(run: FrameworkRun) -> list[Result]:
    """Return the results that make a run fail."""
    return [result for result in run.results if result.status in UNEXPECTED]


def matrix(run: FrameworkRun) -> Matrix:
    """Return the networks by policy, a column for each level and dtype.

    Presets are counted together.
    """
    # Results of operations and of ways are left out.
    of_networks = (
        r for r in run.results if r.check not in ("probe", "item", "ways") and r.policy != "-"
    )
    return _table((result.subject, result) for result in of_networks)


def unread(runs: Iterable[FrameworkRun]) -> dict[str, str]:
    """Return why nothing was read of any absent device that was asked for, by framework."""
    asked = [run for run in runs if is_absent(run.device)]
    read = {run.framework for run in asked if run.ended != "not run"}
    return {
        run.framework: str(run.facts.get("not run", ""))
        for run in asked
        if run.framework not in read
    }


def ways(run: FrameworkRun) -> Matrix:
    """Return the ways of the framework by policy.

    Networks, operations and presets are counted together.
    """
    return _table((result.way, result) for result in run.results if result.check == "ways")


def _table(rows: Iterable[tuple[str, Result]]) -> Matrix:
    cells: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row, result in rows:
        cells[row][_column(result.policy)].append(result.status)
    # Sorted, since results begin with those of behaviours, at O1.
    columns = sorted({column: None for found in cells.values() for column in found}, key=_level)
    return Matrix(
        tuple(columns),
        {row: {c: Cell(Counter(s)) for c, s in found.items()} for row, found in cells.items()},
    )


def _column(policy: str) -> str:
    return " ".join(policy.split()[:2])


def _level(column: str) -> int:
    """Return the rank of a column's level among all; what is no level comes last."""
    level = column.partition(" ")[0]
    return list(LEVELS).index(level) if level in LEVELS else len(LEVELS)


def operations(run: FrameworkRun) -> dict[str, Cell]:
    """Return a cell for every operation that was probed."""
    found: dict[str, list[str]] = defaultdict(list)
    for result in run.results:
        if result.check == "probe" or (result.policy == "-" and result.check != "item"):
            found[result.subject].append(result.status)
    return {op: Cell(Counter(statuses)) for op, statuses in found.items()}
