"""`python -m benchmarks`: measure, print a table, and perhaps write JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.report import machine, show, write
from benchmarks.sections import SECTIONS, missing, standings


def main(
    sections: Annotated[list[str] | None, typer.Argument(help=f"Which of: {', '.join(SECTIONS)}. Default: all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the rounds, for a look; not for quoting.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
) -> None:
    """Unamp side by side with what you would write instead. Every ratio is to the first line of its table."""
    chosen = sections or list(SECTIONS)
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; valid: {', '.join(SECTIONS)}")
    console, about, found = Console(width=None if sys.stdout.isatty() else 110), machine(), []
    console.print(about)
    for section in chosen:
        console.rule(section)
        if framework := missing(section):
            console.print(f"not run: {framework} is not installed", end="\n\n")
            continue
        for standing in standings(section, quick):
            show(standing, console)
            found.append(standing)
    verdicts = [outcome.verdict for standing in found for outcome in standing.outcomes]
    console.print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("pass", "close", "miss")))
    if json is not None:
        write(json, about, found)


if __name__ == "__main__":
    typer.run(main)
