"""The command ``unamp conformance``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from unamp.adapter import DEVICES
from unamp.adapter.registry import installed
from unamp.cli.arguments import module_named
from unamp_conformance.machine import cores
from unamp_conformance.reading import load
from unamp_conformance.report import junit, summary
from unamp_conformance.report.compare import compare as compare_reports
from unamp_conformance.report.html import write as write_page
from unamp_conformance.report.terminal import show_comparison, show_report
from unamp_conformance.results import BadResults, Report, Verdict, save
from unamp_conformance.run import runner
from unamp_conformance.run.plan import CHECKS, NOTHING_SELECTED, Selection
from unamp_conformance.run.progress import Shown
from unamp_conformance.subjects import ABSENT, READABLE, SECOND

__all__ = ["app"]

app = typer.Typer(
    name="conformance",
    help="Check that policies take effect, operation by operation, and write a report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)

_KEPT = "unfinished"  # the folder, inside the output's, for results while a run is under way

Names = list[str] | None


@app.callback()
def conformance(
    context: typer.Context,
    framework: Annotated[
        Names, typer.Option(help="A framework; all installed ones unless said.")
    ] = None,
    device: Annotated[
        Names,
        typer.Option(
            help=(
                f"cpu, gpu, second (kept on the CPU), {', '.join(READABLE)} "
                "(not here: decisions are read)."
            )
        ),
    ] = None,
    preset: Annotated[Names, typer.Option(help="A preset.")] = None,
    level: Annotated[Names, typer.Option(help="A level: O0, OD, O1, O2 or O3.")] = None,
    dtype: Annotated[Names, typer.Option(help="float16 or bfloat16.")] = None,
    network: Annotated[Names, typer.Option(help="A network.")] = None,
    check: Annotated[Names, typer.Option(help=f"A kind of check: {', '.join(CHECKS)}.")] = None,
    op: Annotated[
        Names, typer.Option(help="An operation in any spelling; * is a wildcard.")
    ] = None,
    way: Annotated[Names, typer.Option(help="A way of a framework; * is a wildcard.")] = None,
    imports: Annotated[
        Names,
        typer.Option(
            "--import", help="A module or file of yours that registers operations with examples."
        ),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Run all that a brief run draws from.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Probe every operation under every level of every preset."),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Draw so many items, where a brief run takes too long."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            show_default="as many as cores, 8 at most",
            help="How many processes at a time.",
        ),
    ] = min(cores(), 8),
    timeout: Annotated[
        float, typer.Option(min=1.0, help="After how many seconds a check hangs.")
    ] = 300.0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where an interrupted run of the same checks was."),
    ] = False,
    output: Annotated[
        Path, typer.Option(help="The folder for report.html, results.json and junit.xml.")
    ] = Path("conformance-results"),
    matrices: Annotated[
        bool, typer.Option("--matrices", help="Print each framework's matrix of networks too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON instead of tables.")
    ] = False,
) -> None:
    """Check that policies take effect, operation by operation, and write a report.

    A run is brief unless something is selected: the matrix of networks, and a draw of operations
    and of all else that has every check, network, level, dtype and way. Where levels, presets,
    networks, checks, operations or ways are named, all that fits is run.

    Exits with 0 where it conforms, 1 where something failed that is no known gap, 2 for wrong
    arguments, 3 where a framework could not run, and 4 where nothing was selected.
    """
    if context.invoked_subcommand is not None:
        return
    present = [name for name in installed() if find_spec(name)]
    frameworks = _chosen("framework", framework, installed(), present)
    devices = _chosen("device", device, (*DEVICES, SECOND, *READABLE), (*DEVICES, SECOND, *ABSENT))
    if imports and resume:
        raise typer.BadParameter(
            "--resume cannot tell whether what --import names is as it was; leave one of them out"
        )
    for module in imports or ():
        module_named(module)
    try:
        chosen = {
            "levels": level,
            "dtypes": dtype,
            "presets": preset,
            "networks": network,
            "checks": check,
        }
        chosen |= {"ops": op, "ways": way}
        named = any(
            chosen[name] for name in ("levels", "presets", "networks", "checks", "ops", "ways")
        )
        brief = not (named or thorough or full or sample)
        numbers = {"full": full, "brief": brief, "sample": sample or 0, "seed": seed}
        selection = Selection.from_dict(
            {**{name: values or [] for name, values in chosen.items()}, **numbers}
        )
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if selection.nothing():
        print(f"{Verdict.NOTHING_SELECTED}: {NOTHING_SELECTED}", file=sys.stderr)
        raise typer.Exit(Verdict.NOTHING_SELECTED)
    _check_folder(output)
    options = runner.Options(
        jobs, timeout, keep=output / _KEPT, resume=resume, imports=imports or ()
    )
    report = _run(frameworks, devices, selection, options, quiet=as_json)
    # keeping results made the folder, but none were kept where no framework could be opened
    output.mkdir(parents=True, exist_ok=True)
    save(report, output / "results.json")
    shutil.rmtree(output / _KEPT, ignore_errors=True)
    junit.write(report, output / "junit.xml")
    write_page(report, output / "report.html")
    if as_json:
        print(json.dumps(_brief(report), indent=2))
    else:
        show_report(Console(), report, output, matrices=matrices)
    raise typer.Exit(report.verdict)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A results.json.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold two runs side by side: GPU against CPU, version against version.

    Exits with 0 only where they agree.
    """
    try:
        found = compare_reports(load(first), load(second))
    except (BadResults, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if not found:
        raise typer.BadParameter("the two files have no framework in common")
    if as_json:
        print(json.dumps([comparison.as_dict() for comparison in found], indent=2))
    else:
        for comparison in found:
            show_comparison(Console(), comparison)
    raise typer.Exit(0 if all(comparison.ok for comparison in found) else 1)


def _chosen(what: str, given: Names, valid: Iterable[str], otherwise: Iterable[str]) -> list[str]:
    if unknown := [name for name in given or () if name not in valid]:
        raise typer.BadParameter(
            f"unknown {what} {unknown[0]!r}; valid: "
            f"{', '.join(sorted(valid)) or 'none is installed'}"
        )
    if not (chosen := list(dict.fromkeys(given or otherwise))):
        raise typer.BadParameter(f"no {what} is installed; pip install 'unamp[torch]'")
    return chosen


def _check_folder(output: Path) -> None:
    """Make the folder for the files before the run.

    An error must come now, and not after hours of checks.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise typer.BadParameter(f"--output {output} is a file; name a folder") from None
    except OSError as error:
        raise typer.BadParameter(f"--output {output} cannot be made: {error.strerror}") from error


def _run(
    frameworks: list[str],
    devices: list[str],
    selection: Selection,
    options: runner.Options,
    *,
    quiet: bool,
) -> Report:
    with Shown(product(frameworks, devices), Console(stderr=True), quiet=quiet) as shown:
        try:
            return runner.run(frameworks, devices, selection, replace(options, progress=shown))
        except KeyboardInterrupt:
            print(
                "interrupted; what is finished is kept, and the same command with --resume goes on",
                file=sys.stderr,
            )
            raise typer.Exit(130) from None


def _brief(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "verdict": str(report.verdict),
        "runs": [
            {
                "framework": run.framework,
                "version": run.version,
                "device": run.device,
                "ended": run.ended,
                "checks": dict(summary.totals(run.results)),
                "unexpected": [
                    {"key": r.key, "status": r.status, "message": r.message}
                    for r in summary.unexpected(run)
                ],
                "problems": list(run.problems),
                "seconds": run.seconds,
                "facts": dict(run.facts),
                "variables": dict(run.variables),
            }
            for run in report.runs
        ],
    }


@app.command()
def page(
    results: Annotated[Path, typer.Argument(help="A results.json.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write the page of a run that was made elsewhere or before."""
    try:
        report = load(results)
    except (BadResults, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    write_page(report, output)
    print(f"the report is {output}")


if __name__ == "__main__":
    sys.exit(app())
