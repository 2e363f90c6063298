"""The command `drift`: the decisions that change from one version of a framework to another."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from unamp.cli import printing
from unamp.cli.arguments import DTYPES, AsJson, checked, function_named, given
from unamp.errors import shortened, unknown
from unamp.explaining import Change, changes
from unamp.policy import LEVELS, Policy
from unamp.presets import PRESETS, preset, preset_versions
from unamp.tracing import trace


def drift(
    before: Annotated[
        str,
        typer.Argument(
            metavar="FRAMEWORK==VERSION", help="The version that you know: torch==2.11."
        ),
    ],
    after: Annotated[
        str, typer.Argument(metavar="FRAMEWORK==VERSION", help="The version that you move to.")
    ],
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function without arguments: show only the operations that it calls. "
            "A module's name, or a file's (train.py:function).",
        ),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(LEVELS)}; O1 where not given.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=f"{DTYPES}; float16 where not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the operations whose rule changes between the lists of two versions of a framework."""
    framework, old = _version(before)
    other, new = _version(after)
    if framework != other:
        raise typer.BadParameter(
            f"{before} and {after} are two frameworks; `unamp diff` shows how presets differ"
        )
    base = checked(lambda: Policy(**given(level=level, dtype=dtype)))
    times = None if function is None else _called(function)
    ran = None if times is None else {(base, op): count for op, count in times.items()}
    found = {
        name: changes({"preset": f"{name}@{old}"}, {"preset": f"{name}@{new}"}, ran, [base])
        for name in _presets(framework)
    }
    beyond = {
        name: sorted(preset(f"{name}@{old}").unnamed ^ preset(f"{name}@{new}").unnamed)
        for name in found
    }
    if as_json:
        presets = {
            name: {"operations": {c.op: _as_data(c) for c in changed}, "unnamed": beyond[name]}
            for name, changed in found.items()
        }
        printing.print_json(
            {
                "before": before,
                "after": after,
                "level": base.level,
                "dtype": base.dtype,
                "presets": presets,
            }
        )
        return
    counted = () if times is None else ("times",)
    table = Table("preset", "operation", *counted, before, after, "came from", "comes from")
    for name, changed in found.items():
        for c in changed:
            table.add_row(name, *printing.change(c))
    of = "" if times is None else f", of the {len(times)} that {function} calls"
    operations_changed = len({c.op for changed in found.values() for c in changed})
    table.title = (
        f"{operations_changed} operations change from {before} to {after} "
        f"at {base.level} in {base.dtype}{of}"
    )
    printing.show(table)
    for name, words in beyond.items():
        if words and times is None:
            printing.say(
                f"{name}: on one of the lists, and no operation of unamp's vocabulary: "
                f"{', '.join(words)}"
            )


def _presets(framework: str) -> list[str]:
    """Return the presets that have the versions of a framework."""
    return [
        name for name in PRESETS if preset_versions(name) and preset(name).framework == framework
    ]


def _version(said: str) -> tuple[str, str]:
    """Return the framework and the version that `torch==2.11` or `torch==2.11.0` names.

    Raises typer.BadParameter for another form and for a version without lists.
    """
    form = re.fullmatch(r"(\w+)==(\d+\.\d+)(\.\d+)?", said, re.ASCII)
    if form is None:
        raise typer.BadParameter(f"{shortened(said)} names no version; write it as torch==2.11")
    framework, version, _ = form.groups()
    frameworks = sorted({preset(name).framework for name in PRESETS if preset_versions(name)})
    if framework not in frameworks:
        raise typer.BadParameter(
            unknown("framework", framework, frameworks, "there are lists of versions of")
        )
    versions = preset_versions(_presets(framework)[0])
    if version not in versions:
        raise typer.BadParameter(unknown(f"version of {framework}", version, versions))
    return framework, version


def _called(said: str) -> Counter[str]:
    """Return the counts of a function's operations; its own errors keep their traceback."""
    function = function_named(said)
    with trace() as recorded:
        function()
    if not recorded.records:
        raise typer.BadParameter(f"{said} called no operation of a framework that unamp can see")
    return Counter(record.op for record in recorded.records)


def _as_data(change: Change) -> dict[str, object]:
    times = {} if change.times is None else {"times": change.times}
    return {
        "before": {"rule": change.before.rule.value, "origin": change.before.origin},
        "after": {"rule": change.after.rule.value, "origin": change.after.origin},
        **times,
    }
