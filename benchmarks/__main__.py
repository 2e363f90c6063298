"""`python -m benchmarks`: measure, print tables, keep the results; compare two runs; draw one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from machine_settings import SETTINGS, BadSettings, Setting
from machine_settings import read as read_settings
from rich.console import Console

from benchmarks import pictures, results
from benchmarks.report import machine, show, show_changes
from benchmarks.results import Run
from benchmarks.sections import SECTIONS, framework_of, missing, standings
from benchmarks.selections import SELECTIONS, chosen


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 110)


def run(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Which of: {', '.join(SECTIONS)}. Default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A fifth of the rounds, for a look; not for quoting.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help=f"A selection, in place of sections: {', '.join(SELECTIONS)}."),
    ] = None,
    setting: Annotated[
        str | None,
        typer.Option("--machine", help="Run under a setting of conformance/machines.toml."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
) -> None:
    """Unamp side by side with what you would write instead.

    Every ratio is to the first line of its table.

    `python -m benchmarks compare OLD.json NEW.json` says what became slower beyond the noise;
    `python -m benchmarks draw NEW.json FOLDER` makes pictures.
    """
    try:
        work = chosen(sections or [], only, quick=quick)
        under = _setting(setting) if setting is not None else None
    except (BadSettings, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    console, found = _console(), Run(machine())
    if under is not None:
        found.setting, found.variables = (
            under.name,
            {name: dict(of) for name, of in under.variables.items()},
        )
        console.print(f"as {under.name}: {under.stands_for}")
    console.print(found.machine)
    for section, titles in work.items():
        console.rule(section if under is None else f"{section}, as {under.name}")
        if why := _left_out(section, under):
            console.print(f"not run: {why}", end="\n\n")
            continue
        began, framework = time.monotonic(), framework_of(section)
        variables = {} if under is None or framework is None else under.variables[framework]
        for standing in standings(section, quick, titles, variables):
            show(standing, console)
            found.standings.append(standing)
            if json is not None:  # written after each section, so that an interruption loses little
                results.write(json, found)
        found.sections[section] = round(time.monotonic() - began, 1)
    if json is not None:
        results.write(json, found)
    _total(found, console)


def _setting(name: str) -> Setting:
    settings = read_settings(SETTINGS.read_text("utf-8"))
    if name not in settings:
        raise BadSettings(f"unknown setting {name!r}; valid: {', '.join(settings)}")
    return settings[name]


def _left_out(section: str, setting: Setting | None) -> str:
    """Return the reason why a section is not run; empty where it is run."""
    framework = framework_of(section)
    if absent := missing(section):
        return f"{absent} is not installed"
    if setting is None or framework is None:
        return ""
    if framework not in setting.variables:
        return f"{setting.name} says nothing to {framework}"
    death = setting.death(framework)
    return (
        f"{framework} dies of {death.signal} under {setting.name}: {death.reason}" if death else ""
    )


def _total(found: Run, console: Console) -> None:
    for section, seconds in sorted(found.sections.items(), key=lambda each: -each[1]):
        console.print(f"{seconds:7.1f} s  {section}")
    console.print(f"{sum(found.sections.values()):7.1f} s  in all")
    verdicts = [outcome.verdict for standing in found.standings for outcome in standing.outcomes]
    console.print(
        ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("pass", "close", "miss"))
    )


def compare(
    old: Annotated[Path, typer.Argument(help="Results of a run before.")],
    new: Annotated[Path, typer.Argument(help="Results of a run after.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs of two machines or settings, too.")
    ] = False,
) -> None:
    """Print the rows that became slower or faster by more than the noise.

    The exit status is 1 where one became slower.
    """
    console = _console()
    before, after = _read(old), _read(new)
    different = list(results.apart(before, after))
    if different and not anyway:
        raise typer.BadParameter(
            f"these runs are not comparable: {'; '.join(different)}. "
            "--anyway compares them all the same"
        )
    versions = [found.machine.get("versions") for found in (before, after)]
    for difference in [
        *different,
        *(
            [f"not the same versions: {versions[0]} and {versions[1]}"]
            * (versions[0] != versions[1])
        ),
    ]:
        console.print(difference)
    found = list(results.changes(before.standings, after.standings))
    show_changes((change for change in found if change.verdict), console)
    counts = [
        sum(change.verdict == verdict for change in found) for verdict in ("slower", "faster", "")
    ]
    console.print("{} slower, {} faster, {} within the noise".format(*counts))
    contenders = [
        sum(len(standing.outcomes) - 1 for standing in each.standings) for each in (before, after)
    ]
    if contenders != [len(found), len(found)]:
        alone = [number - len(found) for number in contenders]
        console.print(
            f"not compared: {alone[0]} that only {old} has, {alone[1]} that only {new} has"
        )
    raise typer.Exit(int(counts[0] > 0))


def _read(path: Path) -> Run:
    try:
        return results.read(path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def draw(
    file: Annotated[Path, typer.Argument(help="Results of a run.")],
    folder: Annotated[Path, typer.Argument(help="Where the pictures go.")],
) -> None:
    """Draw the ratios of a run, and what grows, as SVG."""
    for path in pictures.write(folder, _read(file)):
        _console().print(str(path))


if __name__ == "__main__":
    commands = {"compare": compare, "draw": draw}
    typer.run(commands[sys.argv.pop(1)] if sys.argv[1:2] and sys.argv[1] in commands else run)
