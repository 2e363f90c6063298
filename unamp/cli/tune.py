"""The command `tune`: find the operations that must stay in float32."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unamp.cli.arguments import LOW, AsJson, checked, function_named, given, write_file
from unamp.cli.printing import print_json
from unamp.dtypes import FLOAT8, is_float8
from unamp.errors import shortened
from unamp.policy import LEVELS, Policy
from unamp.presets import PRESETS
from unamp.tuning import Float8Study, Tuned, tune
from unamp.tuning.places import BY
from unamp.tuning.search_order import EFFORTS

#: The arguments of `unamp.tune` that a function must return.
_NEEDED = ("run", "network", "batches")


def tune_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function without arguments that returns the arguments of unamp.tune, "
            "as a dict: run, network, batches, and any other. "
            "A module's name, or a file's (train.py:function).",
        ),
    ],
    tolerance: Annotated[
        float | None, typer.Option(help="The largest error that is allowed; 0.01 where not given.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help=f"{LOW}; float16 where not given. {', '.join(FLOAT8)}: a study."),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help=f"Begin with one of {', '.join(LEVELS)}; O3 where not given.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"The base lists to begin with: {', '.join(PRESETS)}.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help=f"What is held as one: {', '.join(BY)}; place where not given."),
    ] = None,
    effort: Annotated[
        str | None, typer.Option(help=f"{' or '.join(EFFORTS)}; halves where not given.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="The part of the tolerance to use; 0.8 where not given.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="How many runs (200), or for how long (90s, 10min, 1.5h).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Keep here what was tried, and go on with it.")
    ] = None,
    toml: Annotated[Path | None, typer.Option(help="Write the precision.toml here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page about the search here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the layers and operations to keep in float32 so that results stay within a tolerance.

    Exits with 0 where the batch that was held out is within the tolerance too, else with 1.
    """
    arguments = _arguments(function)
    arguments |= given(
        tolerance=tolerance,
        dtype=dtype,
        by=by,
        effort=effort,
        margin=margin,
        budget=budget,
        resume=resume,
    )
    if is_float8(arguments.get("dtype")) and (level or preset or toml or html):
        raise typer.BadParameter(
            "a study in float8 takes no --level and no --preset, and writes no --toml and no --html"
        )
    if level is not None or preset is not None:
        stated: dict[str, Any] = {
            "level": level or "O3",
            "dtype": arguments.get("dtype") or "float16",
            "preset": preset or "unamp",
        }
        arguments["base"] = checked(lambda: Policy(**stated))
    tuned = _tuned(arguments)
    if isinstance(tuned, Tuned):
        if toml is not None:
            write_file(toml, tuned.to_toml())
        if html is not None:
            write_file(html, checked(lambda: tuned.to_html(title=f"unamp tune {function}")))
    if as_json:
        print_json(tuned.to_data())
    else:
        print(tuned.table())
    if isinstance(tuned, Tuned) and not tuned.report.within:
        raise typer.Exit(1)


def _tuned(arguments: Mapping[str, Any]) -> Tuned | Float8Study:
    """Return the tuning by `unamp.tune`; errors of the user's own code keep their traceback."""
    try:
        found: Tuned | Float8Study = tune(**arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        if _ours(error):
            raise typer.BadParameter(str(error)) from error
        raise
    return found


def _ours(error: BaseException) -> bool:
    """Return whether unamp raised the error, not the user's code."""
    *_, (raising, _) = traceback.walk_tb(error.__traceback__)
    return str(raising.f_globals.get("__name__", "")).partition(".")[0] == "unamp"


def _arguments(said: str) -> dict[str, Any]:
    found = function_named(said)()
    if not isinstance(found, Mapping):
        raise typer.BadParameter(
            f"{said} must return a dict with {', '.join(_NEEDED)}, not {shortened(found, 40)}"
        )
    unknown = sorted(set(found) - {*inspect.signature(tune).parameters}, key=str)
    missing = [each for each in _NEEDED if each not in found]
    if unknown or missing:
        wrong = f"unknown: {unknown[0]!r}" if unknown else f"missing: {missing[0]!r}"
        raise typer.BadParameter(
            f"{said} must return a dict with {', '.join(_NEEDED)}, "
            f"and what else unamp.tune takes; {wrong}"
        )
    return dict(found)
