"""The command ``unamp conformance``."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from unamp.adapter import DEVICES, installed
from unamp_conformance import junit, runner, summary
from unamp_conformance.compare import compare as compare_reports
from unamp_conformance.machine import cores
from unamp_conformance.plan import CHECKS, Selection
from unamp_conformance.report import write as write_page
from unamp_conformance.results import BadResults, FrameworkRun, Report, load, save

__all__ = ["app"]

app = typer.Typer(
    name="conformance",
    help="Check that policies take effect, operation by operation, and write a report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)

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
_SHOWN = 40  # failures on the terminal; the page has all of them

_KEPT = "unfinished"  # the folder in the output's that keeps results while a run is under way

Names = list[str] | None


@app.callback()
def conformance(
    context: typer.Context,
    framework: Annotated[Names, typer.Option(help="A framework; all installed ones unless said.")] = None,
    device: Annotated[Names, typer.Option(help="cpu or gpu; both unless said.")] = None,
    preset: Annotated[Names, typer.Option(help="A preset.")] = None,
    level: Annotated[Names, typer.Option(help="A level: O0, OD, O1, O2 or O3.")] = None,
    dtype: Annotated[Names, typer.Option(help="float16 or bfloat16.")] = None,
    network: Annotated[Names, typer.Option(help="A network.")] = None,
    check: Annotated[Names, typer.Option(help=f"A kind of check: {', '.join(CHECKS)}.")] = None,
    op: Annotated[Names, typer.Option(help="An operation, * is a wildcard.")] = None,
    full: Annotated[bool, typer.Option(help="Probe every operation under every level of every preset.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many processes at a time.")] = min(cores(), 8),
    timeout: Annotated[float, typer.Option(min=1.0, help="After how many seconds a check hangs.")] = 120.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run of the same checks was.")] = False,
    output: Annotated[Path, typer.Option(help="The folder for report.html, results.json and junit.xml.")] = Path(
        "conformance-results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON instead of tables.")] = False,
) -> None:
    """Check that policies take effect, operation by operation, and write a report.

    Exits with 0 only where nothing failed unexpectedly.
    """
    if context.invoked_subcommand is not None:
        return
    frameworks, devices = _chosen("framework", framework, installed()), _chosen("device", device, DEVICES)
    try:
        chosen = (tuple(names or ()) for names in (level, dtype, preset, network, check, op))
        selection = Selection(*chosen, full=full)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    options = runner.Options(jobs, timeout, keep=output / _KEPT, resume=resume)
    report = _run(frameworks, devices, selection, options, quiet=as_json)
    save(report, output / "results.json")
    shutil.rmtree(output / _KEPT, ignore_errors=True)
    junit.write(report, output / "junit.xml")
    write_page(report, output / "report.html")
    if as_json:
        print(json.dumps(_brief(report), indent=2))
    else:
        _show(report, output)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A results.json.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold two runs side by side: GPU against CPU, version against version. Exits with 0 only where they agree."""
    try:
        found = compare_reports(load(first), load(second))
    except (BadResults, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        print(json.dumps([vars(d) for d in found], indent=2))
    elif found:
        table = Table("check", "of", "policy", escape(str(first)), escape(str(second)), "message")
        for d in found:
            table.add_row(*(Text(v) for v in (d.check, d.subject, d.policy, d.first, d.second, d.message[:120])))
        Console().print(table)
    else:
        print("every check that both ran came out the same")
    raise typer.Exit(1 if found else 0)


def _chosen(what: str, given: Names, valid: Any) -> list[str]:
    if unknown := [name for name in given or () if name not in valid]:
        raise typer.BadParameter(f"unknown {what} {unknown[0]!r}; valid: {', '.join(sorted(valid)) or 'none is installed'}")
    if not valid:
        raise typer.BadParameter(f"no {what} is installed; pip install 'unamp[torch]'")
    return list(dict.fromkeys(given or valid))


def _run(frameworks: list[str], devices: list[str], selection: Selection, options: runner.Options, *, quiet: bool) -> Report:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[item]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        tasks: dict[tuple[str, str], Any] = {}

        def progress(framework: str, device: str, done: int, total: int, item: str) -> None:
            key = (framework, device)
            if key not in tasks:
                tasks[key] = bar.add_task(" ".join(key), total=total, item="")
            bar.update(tasks[key], completed=done, total=total, item=item)

        try:
            return runner.run(frameworks, devices, selection, replace(options, progress=progress))
        except KeyboardInterrupt:
            bar.stop()
            print("interrupted; what is finished is kept, and the same command with --resume goes on", file=sys.stderr)
            raise typer.Exit(130) from None


def _show(report: Report, output: Path) -> None:
    console = Console()
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


def _brief(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "runs": [
            {
                "framework": run.framework,
                "version": run.version,
                "device": run.device,
                "ended": run.ended,
                "checks": dict(summary.totals(run.results)),
                "unexpected": [{"key": r.key, "status": r.status, "message": r.message} for r in summary.unexpected(run)],
                "problems": list(run.problems),
            }
            for run in report.runs
        ],
    }


if __name__ == "__main__":
    sys.exit(app())
