"""The contents of a report's page, gathered from the report.

They are frameworks, what went wrong, matrices, plots, agreement, operations and gaps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from unamp.adapter.machine import INSTRUCTION_SETS, said
from unamp_conformance.report import plots, summary
from unamp_conformance.report.compare import of_devices
from unamp_conformance.report.evidence import Evidence, evidence, number, ratio
from unamp_conformance.report.summary import Cell
from unamp_conformance.results import STATUSES, UNEXPECTED, FrameworkRun, Report, Result
from unamp_conformance.run.plan import CHECKS
from unamp_conformance.subjects import is_absent

__all__ = ["Page", "Pair", "Section"]

#: The statuses in the order in which they are counted for people: what must not be overlooked comes
#: first.
_ORDER = (
    *(s for s in STATUSES if s in UNEXPECTED),
    "gap",
    "not applicable",
    "not run",
    "refused",
    "passed",
)


class Page:
    """A whole report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.sections = [Section(run, number) for number, run in enumerate(report.runs)]
        self.pairs = [Pair(section) for section in self.sections if section.compares]
        of_one = [section for section in self.sections if not section.compares]
        self.frameworks = [section for section in of_one if not is_absent(section.run.device)]
        #: The runs that read devices that are not here; `unread` has the frameworks without one.
        self.read = [
            section
            for section in of_one
            if is_absent(section.run.device) and section.run.ended != "not run"
        ]
        self.unread = summary.unread(report.runs)
        self.tested = {section.run.framework for section in of_one}
        self.totals = _ordered(sum((section.totals for section in self.sections), Counter()))
        self.on_devices = of_devices(report)
        self.panels = plots.panels([section.run for section in self.measured])

    @property
    def unexpected(self) -> int:
        """Return the number of failures, of checks and of whole runs."""
        return sum(
            len(section.wrong) + len(section.run.problems) + section.broken
            for section in self.sections
        )

    @cached_property
    def measured(self) -> list[Section]:
        """The runs with errors to plot; a plot's series are these, in this order."""
        return [s for s in self.frameworks if any(ratio(r) is not None for r in s.run.results)]

    @property
    def names(self) -> dict[str, list[Section]]:
        """The runs of each framework, one for each device."""
        found: dict[str, list[Section]] = defaultdict(list)
        for section in self.frameworks:
            found[section.run.framework].append(section)
        return dict(found)

    @property
    def probed(self) -> list[Section]:
        """The runs that looked at operations."""
        return [section for section in self.frameworks if section.operations]

    @cached_property
    def operations(self) -> dict[str, list[Cell | None]]:
        """A cell of each run that looked at operations, for every operation.

        None where the run has no such operation.
        """
        names = sorted({op for section in self.probed for op in section.operations})
        return {op: [section.operations.get(op) for section in self.probed] for op in names}

    @cached_property
    def remarkable(self) -> dict[str, list[Cell | None]]:
        """The operations with anything but passed checks."""
        return {
            op: cells
            for op, cells in self.operations.items()
            if any(c and c.status != "passed" for c in cells)
        }

    @property
    def largest(self) -> Iterator[tuple[str, str, list[float | None]]]:
        """The errors that the plots show, for every dtype and network, in bounds.

        Of each run it is the largest.
        """
        for panel in self.panels:
            for row in panel.rows:
                yield (
                    panel.dtype,
                    row.label,
                    [row.largest.get(series) for series in range(len(self.measured))],
                )

    def cells(self) -> dict[str, Any]:
        """Return every check behind the matrices' cells for the page's script, in short.

        Each is ``[check, status, error, bound, note]``, where check and status are numbers of
        names, and a note is either the identifier of a place in the page or the number of a text.
        """
        checks, statuses, notes = _Numbers(CHECKS), _Numbers(STATUSES), _Numbers(())
        runs: dict[str, Any] = {}
        for section in (*self.frameworks, *self.read):
            if section.matrix.rows:
                runs[str(section.number)] = section.cells(checks, statuses, notes)
            if section.ways.rows:
                runs[f"{section.number}-ways"] = section.ways_cells(checks, statuses, notes)
        return {
            "runs": runs,
            "checks": list(checks),
            "statuses": list(statuses),
            "notes": list(notes),
        }


class Section:
    """One run: a framework on a device, or two frameworks compared."""

    def __init__(self, run: FrameworkRun, number: int) -> None:
        self.run = run
        self.number = number
        self.id = f"run-{number}"
        self.compares = bool(run.results) and all(
            result.check == "agreement" for result in run.results
        )
        self.matrix = summary.matrix(run)
        self.ways = summary.ways(run)
        self.operations = summary.operations(run)
        self.totals = summary.totals(run.results)
        self.wrong = summary.unexpected(run)
        self.behaviours = {result.subject for result in run.results if result.check == "behaviour"}
        self.unreached = [result for result in run.results if result.check == "item"]

    @property
    def title(self) -> str:
        """The title, for people."""
        return f"{self.run.framework} {self.run.version}, {self.run.device}"

    @property
    def uses(self) -> str:
        """The facts that the framework computed with, and the variables that change it.

        The facts are those that its adapter tells.
        """
        told = {name: fact for name, fact in self.run.facts.items() if name not in INSTRUCTION_SETS}
        return ", ".join(
            (
                *(f"{name}: {said(fact)}" for name, fact in told.items()),
                *map("=".join, self.run.variables.items()),
            )
        )

    @cached_property
    def unreadable(self) -> dict[str, list[str]]:
        """The operations of which an absent device has no program, by the reason.

        The commonest reason comes first.
        """
        found: dict[str, set[str]] = defaultdict(set)
        for result in self.run.results:
            if result.check == "probe" and result.status == "not run":
                found[str(result.details.get("why", ""))].add(result.subject)
        return {
            why: sorted(ops) for why, ops in sorted(found.items(), key=lambda item: -len(item[1]))
        }

    @property
    def broken(self) -> bool:
        """Return whether the run as a whole ended in an error."""
        return self.run.ended not in ("finished", "not run")

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of results of each status, the worst first."""
        return _ordered(self.totals)

    @cached_property
    def evidence(self) -> dict[str, list[tuple[str, Evidence]]]:
        """The evidence of what went wrong, by subject, each with its identifier in the page."""
        found: dict[str, list[tuple[str, Evidence]]] = defaultdict(list)
        for place, shown in enumerate(evidence(self.wrong, self.run.results)):
            found[shown.result.subject].append((f"{self.id}-{place}", shown))
        return dict(found)

    def failed(self, subject: str) -> Mapping[str, int]:
        """Return the number of a subject's failed checks, by status."""
        return _ordered(summary.totals(shown.result for _, shown in self.evidence[subject]))

    @cached_property
    def places(self) -> dict[str, str]:
        """The identifier in the page of each subject's first failure."""
        return {subject: found[0][0] for subject, found in self.evidence.items()}

    @property
    def columns(self) -> list[tuple[str, list[str]]]:
        """The matrix's columns: levels, each with its dtypes."""
        return _by_level(self.matrix.columns)

    @property
    def ways_columns(self) -> list[tuple[str, list[str]]]:
        """The columns of the matrix of ways."""
        return _by_level(self.ways.columns)

    @cached_property
    def ways_numbers(self) -> dict[str, int]:
        """The rows of the matrix of ways by number."""
        return {row: number for number, row in enumerate(self.ways.rows)}

    @property
    def lost(self) -> int:
        """Return the number of checks in which a policy was lost in silence."""
        return self.totals.get("lost", 0)

    @cached_property
    def row_numbers(self) -> dict[str, int]:
        """The matrix's rows by number."""
        return {row: number for number, row in enumerate(self.matrix.rows)}

    @property
    def rows(self) -> list[tuple[str, Mapping[str, Mapping[str, Cell]]]]:
        """The matrix's rows in two groups."""
        networks = {
            name: cells for name, cells in self.matrix.rows.items() if name not in self.behaviours
        }
        behaviours = {
            name: cells for name, cells in self.matrix.rows.items() if name in self.behaviours
        }
        return [
            (what, rows)
            for what, rows in (("networks", networks), ("behaviours", behaviours))
            if rows
        ]

    @property
    def gaps(self) -> dict[str, list[_Gap]]:
        """The known gaps by their reason, those with most checks first.

        Policies with the same message are one entry.
        """
        found: dict[str, dict[tuple[str, str, str], list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for r in self.run.results:
            if r.status == "gap":
                found[r.reason][r.subject, r.check, r.message].append(r.policy)
        gaps = {
            reason: [_Gap(*what, policies) for what, policies in entries.items()]
            for reason, entries in found.items()
        }
        return dict(
            sorted(gaps.items(), key=lambda item: -sum(len(gap.policies) for gap in item[1]))
        )

    def cells(self, checks: _Numbers, statuses: _Numbers, notes: _Numbers) -> dict[int, Any]:
        """Return the checks for `Page.cells`, by the numbers of row and column and by preset.

        Numbers stand for names because HTML alters some names.
        """
        of_networks = (
            (self.row_numbers[r.subject], " ".join(r.policy.split()[2:]), r)
            for r in self.run.results
            if r.subject in self.matrix.rows
            and r.check not in ("probe", "item", "ways")
            and r.policy != "-"
        )
        return self._entries(of_networks, self.matrix.columns, checks, statuses, notes)

    def ways_cells(self, checks: _Numbers, statuses: _Numbers, notes: _Numbers) -> dict[int, Any]:
        """Return the same of the matrix of ways, by what ran in each and by preset."""
        of_ways = (
            (self.ways_numbers[r.way], " ".join((r.subject, *r.policy.split()[2:])), r)
            for r in self.run.results
            if r.check == "ways"
        )
        return self._entries(of_ways, self.ways.columns, checks, statuses, notes)

    def _entries(
        self,
        results: Iterable[tuple[int, str, Result]],
        named: Sequence[str],
        checks: _Numbers,
        statuses: _Numbers,
        notes: _Numbers,
    ) -> dict[int, Any]:
        places = {
            id(shown.result): place for found in self.evidence.values() for place, shown in found
        }
        columns = {column: number for number, column in enumerate(named)}
        cells: dict[int, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for row, line, result in results:
            entry: list[Any] = [checks[result.check], statuses[result.status]]
            entry += [_digits(result.details.get(name)) for name in ("error", "bound")]
            if result.status != "passed":
                said = ": ".join(filter(None, (result.reason, result.message)))
                entry.append(places.get(id(result)) or notes[said])
            while entry[-1] is None:
                entry.pop()
            cells[row][columns[" ".join(result.policy.split()[:2])]][line].append(entry)
        return cells


class Pair:
    """Two frameworks compared: how often they agree, and how far apart their numbers are then."""

    def __init__(self, section: Section) -> None:
        self.section = section
        results = section.run.results
        self.networks = _ordered(summary.totals(r for r in results if r.policy != "-"))
        self.operations = _ordered(summary.totals(r for r in results if r.policy == "-"))
        apart = [
            multiple for r in results if r.status == "passed" and (multiple := ratio(r)) is not None
        ]
        self.farthest = max(apart, default=None)
        self.silent = [result for result in results if result.status == "not run"]


class _Gap(NamedTuple):
    """A subject that is known to fail alike under some policies."""

    subject: str
    check: str
    message: str
    policies: list[str]

    @property
    def checks(self) -> int:
        """Return the number of checks that it stands for."""
        return len(self.policies)


class _Numbers(dict[str, int]):
    """Texts by number: each is kept once."""

    def __init__(self, texts: Iterable[str]) -> None:
        super().__init__((text, number) for number, text in enumerate(texts))

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _by_level(columns: Iterable[str]) -> list[tuple[str, list[str]]]:
    parts = [column.partition(" ") for column in columns]
    return [
        (level, [dtype for _, _, dtype in group])
        for level, group in groupby(parts, key=lambda part: part[0])
    ]


def _digits(value: object) -> float | None:
    """Return a number with as many digits as are read; None for anything else."""
    found = number(value)
    return None if found is None else float(f"{found:.3g}")


def _ordered(totals: Mapping[str, int]) -> dict[str, int]:
    return {status: totals[status] for status in _ORDER if totals.get(status)}
