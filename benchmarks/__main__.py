"""`python -m benchmarks`: measure, print tables, and keep the results; compare two runs; draw one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import pictures, results
from benchmarks.report import machine, show, show_changes
from benchmarks.sections import SECTIONS, missing, standings


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 110)


def run(
    sections: Annotated[list[str] | None, typer.Argument(help=f"Which of: {', '.join(SECTIONS)}. Default: all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the rounds, for a look; not for quoting.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
) -> None:
    """Unamp side by side with what you would write instead. Every ratio is to the first line of its table.

    `python -m benchmarks compare OLD.json NEW.json` says what became slower beyond the noise;
    `python -m benchmarks draw NEW.json FOLDER` makes pictures.
    """
    chosen = sections or list(SECTIONS)
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; valid: {', '.join(SECTIONS)}")
    console, about, found = _console(), machine(), []
    console.print(about)
    for section in chosen:
        console.rule(section)
        if framework := missing(section):
            console.print(f"not run: {framework} is not installed", end="\n\n")
            continue
        for standing in standings(section, quick):
            show(standing, console)
            found.append(standing)
            if json is not None:  # after each: a run that is broken off is not lost
                results.write(json, about, found)
    verdicts = [outcome.verdict for standing in found for outcome in standing.outcomes]
    console.print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("pass", "close", "miss")))


def compare(
    old: Annotated[Path, typer.Argument(help="Results of a run before.")],
    new: Annotated[Path, typer.Argument(help="Results of a run after.")],
) -> None:
    """Say what became slower or faster by more than the noise; the exit status is 1 where something became slower."""
    console = _console()
    try:
        (machine_before, before), (machine_after, after) = results.read(old), results.read(new)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    for about in ("cpu_model_name", "versions"):
        if machine_before.get(about) != machine_after.get(about):
            console.print(f"not the same {about}: {machine_before.get(about)} and {machine_after.get(about)}")
    found = list(results.changes(before, after))
    show_changes((change for change in found if change.verdict), console)
    counts = [sum(change.verdict == verdict for change in found) for verdict in ("slower", "faster", "")]
    console.print("{} slower, {} faster, {} within the noise".format(*counts))
    raise typer.Exit(int(counts[0] > 0))


def draw(
    file: Annotated[Path, typer.Argument(help="Results of a run.")],
    folder: Annotated[Path, typer.Argument(help="Where the pictures go.")],
) -> None:
    """Draw the ratios of a run, and what grows, as SVG."""
    try:
        _, found = results.read(file)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    for path in pictures.write(folder, found):
        _console().print(str(path))


if __name__ == "__main__":
    commands = {"compare": compare, "draw": draw}
    typer.run(commands[sys.argv.pop(1)] if sys.argv[1:2] and sys.argv[1] in commands else run)
