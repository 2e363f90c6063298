"""Print a run, or a comparison of two, on the terminal.

The output of a run ends with what a reader asks first: a line for each framework, the failures, and
the verdict. The matrices are in the report, and are printed on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unamp_conformance.report import summary
from unamp_conformance.report.compare import Comparison, Difference, of_devices
from unamp_conformance.results import SIGNS, UNEXPECTED, FrameworkRun, Report
from unamp_conformance.subjects import SECOND, is_absent

__all__ = ["show_comparison", "show_report"]

#: Every status in the style that the terminal's matrix has for it.
_STYLES = {
    "passed": "green",
    "refused": "cyan",
    "gap": "yellow",
    "not applicable": "dim",
    "not run": "dim",
    "lost": "bold white on red",
    "failed": "bold red",
    "fixed": "bold magenta",
    "crashed": "bold red",
    "hung": "bold red",
}
_SHORT = {"float16": "fp16", "bfloat16": "bf16"}  # eleven columns must fit into a narrow terminal
_WIDEST = 24  # characters of a network's name, which leaves room for eleven columns
_SHOWN = 40  # failures on the terminal; the files have all of them


def show_report(console: Console, report: Report, output: Path, *, matrices: bool = False) -> None:
    """Print each framework's outcome, what went wrong, the verdict, and where the report is.

    Args:
        console: where to.
        report: the run.
        output: the folder of its files.
        matrices: print each framework's matrices of networks and of ways by policies too.
    """
    if matrices:
        for run in report.runs:
            for what, found in (("networks", summary.matrix(run)), ("ways", summary.ways(run))):
                if found.rows:
                    console.print(_matrix(f"{_heading(run)}: {what}", found))
        console.print("  ".join(f"{SIGNS[status]} {status}" for status in _STYLES), style="dim")
    console.print(_overview(report))
    for text in _draws(report):
        console.print(Text(text), soft_wrap=True)
    for comparison in of_devices(report):
        console.print(_on_two_devices(comparison), soft_wrap=True)
    missed = [run for run in report.runs if run.ended == "not run" and _is_missed(run, report)]
    if absent := [f"{run.framework} on {run.device}" for run in missed]:
        console.print(
            Text(f"not run, for there is no such device here: {', '.join(absent)}", style="dim")
        )
    for framework, why in summary.unread(report.runs).items():
        console.print(
            Text(f"not run: {framework} on devices that are not here: {why}", style="dim"),
            soft_wrap=True,
        )
    for run in report.runs:
        _show_wrong(console, run)
    style = "bold green" if report.ok else "bold red"
    console.print(
        Text(f"\n{report.verdict}", style=style)
        + Text(f"; the report is {output / 'report.html'}", style="default")
    )


def _draws(report: Report) -> Iterator[str]:
    """Yield the draws, a line for each run that drew, and how to run all of it."""
    drawn = [
        f"{_heading(run)}: {run.facts['drawn']}" for run in report.runs if "drawn" in run.facts
    ]
    if drawn:
        yield "drawn, which another --seed draws otherwise; --thorough runs all:"
        yield from (f"  {line}" for line in drawn)


def _is_missed(run: FrameworkRun, report: Report) -> bool:
    """Return whether a device that is not there is worth a word.

    A second one is not: few frameworks have it, and it is no hardware. Nor is a device whose
    programs would have been read.
    """
    if is_absent(run.device):
        return False
    ran = {other.framework for other in report.runs if other.ended != "not run"}
    return run.device != SECOND or run.framework not in ran


def _overview(report: Report) -> Table:
    """Return a table with a line for each framework and device.

    All comparisons of two share one further line.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for heading in ("passed", "failed", "known gaps", "seconds"):
        table.add_column(heading, justify="right")
    compared = [run for run in report.runs if run.compares]
    for run in report.runs:
        if not run.compares and run.ended != "not run":
            _add_line(table, _heading(run), [run])
    if compared:
        disagree = sum(not run.ok for run in compared)
        _add_line(
            table,
            f"agreement of {len(compared)} pairs" + f", {disagree} do not" * bool(disagree),
            compared,
        )
    return table


def _on_two_devices(found: Comparison) -> Text:
    """Return a line about one framework on two devices."""
    told = (
        ("came out differently", found.changed),
        ("decided differently", found.decisions),
        ("too far apart", found.apart),
    )
    differing = ", ".join(
        f"{len(differences):,} {what}" for what, differences in told if differences
    )
    errors = [
        f"errors of {e.check} {e.median:.2f} to 1"
        for e in found.errors
        if e.check in ("outputs", "gradients")
    ]
    return Text(
        "; ".join(
            [
                f"{found.second} against {found.first}: {found.both:,} checks",
                differing or "all alike",
                *errors,
            ]
        )
    )


def _add_line(table: Table, heading: str, runs: Sequence[FrameworkRun]) -> None:
    counts = Counter(result.status for run in runs for result in run.results)
    failed = sum(counts[status] for status in UNEXPECTED) + sum(len(run.problems) for run in runs)
    rest = [
        f"{n:,} {status}" for status, n in counts.items() if status in ("not run", "not applicable")
    ]
    table.add_row(
        Text(", ".join([heading, *rest])),
        f"{counts['passed']:,}",
        Text(f"{failed:,}", style="bold red" if failed else "default"),
        f"{counts['gap']:,}",
        f"{sum(run.seconds for run in runs):,.0f}",
    )


def _heading(run: FrameworkRun) -> str:
    return f"{run.framework} {run.version}, {run.device}" + ", read and not run" * is_absent(
        run.device
    )


def _matrix(title: str, found: summary.Matrix) -> Table:
    table = Table(title=escape(title), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    # Folded, for names that are cut can be those of two rows.
    table.add_column(overflow="fold", min_width=min(max(map(len, found.rows)), _WIDEST))
    for column in found.columns:
        level, dtype = column.split()
        table.add_column(
            f"{level}\n{_SHORT[dtype]}",
            justify="center",
            no_wrap=True,
            min_width=len(_SHORT[dtype]),
        )
    for row, cells in found.rows.items():
        table.add_row(
            Text(row), *(_sign(cells[c].status) if c in cells else Text("") for c in found.columns)
        )
    return table


def _show_wrong(console: Console, run: FrameworkRun) -> None:
    """Print why a run ended early, and what failed, each with a heading that says whose it is."""
    heading = _heading(run)
    if run.ended not in ("finished", "not run"):
        console.print(Text(f"{heading}: {run.ended}", style="bold red"), soft_wrap=True)
    wrong = summary.unexpected(run)
    if wrong:
        silent = sum(result.status == "lost" for result in wrong)
        told = f", {silent:,} of them lost in silence" * bool(silent)
        console.print(Text(f"{heading}: {len(wrong):,} went wrong{told}", style="bold red"))
    for result in sorted(wrong, key=lambda result: result.status != "lost")[:_SHOWN]:
        what = " in ".join(filter(None, (result.subject, result.way)))
        line = f"  {result.status}: {result.check} {what} [{result.policy}]: {result.message}"
        console.print(Text(line[:400], style="red"), soft_wrap=True)
    if len(wrong) > _SHOWN:
        console.print(f"  ... and {len(wrong) - _SHOWN:,} more; the report has all of them")
    for problem in run.problems:
        console.print(Text(f"{heading}: {problem}", style="red"), soft_wrap=True)


def _sign(status: str) -> Text:
    return Text(SIGNS[status], style=_STYLES[status])


def show_comparison(console: Console, found: Comparison) -> None:
    """Print the differences of two runs."""
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
        table = _table(
            "errors, second over first", "check", "compared", "median", "largest", "where"
        )
        for e in found.errors:
            table.add_row(
                _plain(e.check),
                str(e.compared),
                f"{e.median:.2f}",
                f"{e.largest:.2f}",
                _plain(e.where),
            )
        console.print(table)
    console.print("they agree" if found.ok else "they do not agree")


def _table(title: str, *headings: str) -> Table:
    """Return a table that cuts nothing.

    A word that is wider than its column goes on in the next line.
    """
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _differences(title: str, differences: tuple[Difference, ...]) -> Table:
    table = _table(title, "check", "of", "policy", "first", "second", "message")
    for d in differences[:_SHOWN]:
        table.add_row(
            *map(_plain, (d.check, d.subject, d.policy, d.first, d.second, d.message[:120]))
        )
    if len(differences) > _SHOWN:
        table.add_row("...", f"and {len(differences) - _SHOWN} more; --json has all of them")
    return table


def _plain(text: str) -> Text:
    """Return text without markup, and without what a terminal obeys.

    A file that may come from anywhere can hold both.
    """
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
