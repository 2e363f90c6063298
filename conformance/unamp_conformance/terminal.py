"""What the terminal shows of a run, and of a comparison."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unamp_conformance import summary
from unamp_conformance.compare import Comparison, Difference
from unamp_conformance.results import FrameworkRun, Report

__all__ = ["show_comparison", "show_report"]

#: One sign for each status in the terminal's matrix, with its style.
_SIGNS = {
    "passed": ("●", "green"),
    "gap": ("◐", "yellow"),
    "not run": ("○", "dim"),
    "failed": ("✗", "bold red"),
    "fixed": ("!", "bold magenta"),
    "crashed": ("☠", "bold red"),
    "hung": ("…", "bold red"),
}
_SHORT = {"float16": "fp16", "bfloat16": "bf16"}  # eleven columns must fit into a narrow terminal
_SHOWN = 40  # failures on the terminal; the files have all of them


def show_report(console: Console, report: Report, output: Path) -> None:
    """Print the matrix of every framework, what went wrong, and where the report is."""
    for run in report.runs:
        heading = f"{run.framework} {run.version}, {run.device}"
        if run.ended == "not run":
            console.print(Text(f"{heading}: not run, there is no such device here"))
            continue
        if run.ended != "finished":
            console.print(Text(f"{heading}: {run.ended}", style="bold red"))
        if run.results:
            _show_run(console, heading, run)
    console.print("  ".join(f"{sign} {status}" for status, (sign, _) in _SIGNS.items()), style="dim")
    console.print(Text(f"\n{'conforms' if report.ok else 'does not conform'}; the report is {output / 'report.html'}"))


def _show_run(console: Console, heading: str, run: FrameworkRun) -> None:
    found = summary.matrix(run)
    if found.rows:
        table = Table(title=escape(heading))
        table.add_column(no_wrap=True, min_width=max(map(len, found.rows)))
        for column in found.columns:
            level, dtype = column.split()
            table.add_column(f"{level}\n{_SHORT[dtype]}", justify="center")
        for row, cells in found.rows.items():
            table.add_row(Text(row), *(_sign(cells[c].status) if c in cells else Text("") for c in found.columns))
        console.print(table)
    probed = Counter(cell.status for cell in summary.operations(run).values())
    if probed:
        console.print(Text(f"{heading}, operations: " + ", ".join(f"{n} {status}" for status, n in probed.items())))
    totals = summary.totals(run.results)
    counted = ", ".join(f"{n} {s}" for s, n in totals.items())
    console.print(Text(f"{heading}, checks: {counted}, {run.seconds:.0f} s"))
    wrong = summary.unexpected(run)
    for result in wrong[:_SHOWN]:
        line = f"{result.status}: {result.check} {result.subject} [{result.policy}]: {result.message}"
        console.print(Text(line[:400], style="red"), soft_wrap=True)
    if len(wrong) > _SHOWN:
        console.print(f"... and {len(wrong) - _SHOWN} more; the report has all of them")
    for problem in run.problems:
        console.print(Text(problem, style="red"))


def _sign(status: str) -> Text:
    sign, style = _SIGNS[status]
    return Text(sign, style=style)


def show_comparison(console: Console, found: Comparison) -> None:
    """Print what differs between two runs."""
    console.print(_plain(f"{found.first}  against  {found.second}"), style="bold")
    alone = " and ".join(map(str, found.alone))
    console.print(Text(f"{found.both} checks in both, {alone} in one of them only"))
    for title, differences in (
        ("came out differently", found.changed),
        ("decided differently", found.decisions),
        ("numbers too far apart", found.apart),
    ):
        if differences:
            console.print(_differences(f"{len(differences)} {title}", differences))
    if found.errors:
        table = Table("check", "compared", "median", "largest", "where", title="errors, second over first")
        for e in found.errors:
            table.add_row(_plain(e.check), str(e.compared), f"{e.median:.2f}", f"{e.largest:.2f}", _plain(e.where))
        console.print(table)
    console.print("they agree" if found.ok else "they do not agree")


def _differences(title: str, differences: tuple[Difference, ...]) -> Table:
    table = Table("check", "of", "policy", "first", "second", "message", title=title)
    for d in differences[:_SHOWN]:
        table.add_row(*map(_plain, (d.check, d.subject, d.policy, d.first, d.second, d.message[:120])))
    if len(differences) > _SHOWN:
        table.add_row("...", f"and {len(differences) - _SHOWN} more; --json has all of them")
    return table


def _plain(text: str) -> Text:
    """Text of a file that may come from anywhere: neither markup nor what a terminal obeys."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
