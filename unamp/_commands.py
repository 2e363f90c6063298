"""The commands of `unamp`, one function each.

Commands of other distributions are mounted through the entry-point group `unamp.commands`: the entry point's name is the
command, its object a `typer.Typer`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

import unamp
from unamp._doctor import examine_all
from unamp._entry_points import entry_points
from unamp.adapter import DEVICES, installed
from unamp.explaining import Explanation, explain
from unamp.policy import LEVELS, Policy
from unamp.presets import PRESETS, preset
from unamp.vocabulary import FRAMEWORKS, Operation, vocabulary

app = typer.Typer(
    name="unamp",
    help="One automatic-mixed-precision policy for every deep-learning framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(unamp.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show the frameworks, their versions, their devices, and which dtypes run natively or emulated."""
    reports = examine_all()
    if as_json:
        _print_json(reports)
        return
    table = Table("framework", "version", "device", "float16", "bfloat16", title="what runs here, and how")
    for report in reports:
        if report["status"] != "ready":
            table.add_row(report["framework"], report["status"], report["advice"])
            continue
        for device, support in report["devices"].items():
            how = (support["float16"], support["bfloat16"]) if support else ("device not present", "")
            table.add_row(report["framework"], report["version"], device, *how)
    _show(table)
    for report in reports:
        for gap in report.get("gaps", ()):
            print(f"{report['framework']} cannot do: {gap['what']} ({gap['reason']}) {gap['link']}".rstrip())


@app.command()
def ops(
    name: Annotated[str | None, typer.Argument(help="One operation, in any framework's spelling.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the operations of the vocabulary, or show everything about one."""
    if name is not None:
        _show_operation(_checked(lambda: vocabulary()[vocabulary().resolve(name)]), as_json)
    elif as_json:
        _print_json({op.name: _as_data(op) for op in vocabulary().values()})
    else:
        _show_vocabulary()


@app.command("explain")
def explain_command(
    preset: Annotated[str, typer.Option(help=f"The base lists: {', '.join(PRESETS)}.")] = "unamp",
    level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "O1",
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16",
    allow: Annotated[list[str] | None, typer.Option(help="An operation to run in the low dtype; repeat for more.")] = None,
    deny: Annotated[list[str] | None, typer.Option(help="An operation to run in float32; repeat for more.")] = None,
    promote: Annotated[bool, typer.Option(help="At O2: operations on no list run in their widest input dtype.")] = False,
    framework: Annotated[str | None, typer.Option(help="Import this framework and say how it carries each rule out.")] = None,
    device: Annotated[str | None, typer.Option(help=f"{' or '.join(DEVICES)}; both where not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show for every operation its rule, where the rule comes from, and how a framework carries it out."""
    if framework is not None:
        _import(framework)
    explained = _checked(
        lambda: explain(Policy(level, dtype, tuple(allow or ()), tuple(deny or ()), preset, promote=promote), framework, device)
    )
    if as_json:
        _print_json({op: _explained_as_data(e) for op, e in explained.items()})
        return
    where = sorted({place for e in explained.values() for place in e.how})
    table = Table("operation", "rule", "comes from", *(" on ".join(place) for place in where))
    for op, e in explained.items():
        table.add_row(op, e.rule.value, e.origin, *(e.how[place].value for place in where))
    _show(table)


def _mount_commands() -> None:
    for point in entry_points("unamp.commands"):
        try:
            app.add_typer(point.load(), name=point.name)
        except ModuleNotFoundError as error:
            _mount_missing(point.name, error.name)


def _mount_missing(command: str, module: str | None) -> None:
    @app.command(command, help=f"Not available: needs {module}.", context_settings={"ignore_unknown_options": True})
    def missing(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        raise SystemExit(f"`unamp {command}` needs {module}, which is not installed; pip install 'unamp[conformance]'")


def _show_vocabulary() -> None:
    table = Table("operation", "group", *FRAMEWORKS, title=f"{len(vocabulary())} operations, and their first spellings")
    for op in vocabulary().values():
        table.add_row(op.name, op.group, *(_first(op.spellings.get(framework, ())) for framework in FRAMEWORKS))
    _show(table)


def _show_operation(op: Operation, as_json: bool) -> None:
    rules = {name: Policy(preset=name).decide(op.name).value for name in PRESETS if not preset(name).delegates}
    if as_json:
        _print_json({"name": op.name, **_as_data(op), "rules": rules})
        return
    table = Table("", "", title=op.name, show_header=False)
    table.add_row("group", op.group)
    if op.parts:
        table.add_row("computes with", ", ".join(op.parts))
    if op.members:
        table.add_row("stands for", ", ".join(op.members))
    for framework in FRAMEWORKS:
        if framework in op.spellings:
            table.add_row(f"in {framework}", ", ".join(op.spellings[framework]))
    table.add_section()
    for name, rule in rules.items():
        table.add_row(f"preset {name}", f"{rule} at O1")
    _show(table)


def _as_data(op: Operation) -> dict[str, Any]:
    spellings = {framework: list(words) for framework, words in op.spellings.items()}
    return {"group": op.group, "parts": list(op.parts), "members": list(op.members), "spellings": spellings}


def _explained_as_data(e: Explanation) -> dict[str, Any]:
    how: dict[str, dict[str, str]] = {}
    for (framework, device), carried_out in e.how.items():
        how.setdefault(framework, {})[device] = carried_out.value
    return {"rule": e.rule.value, "origin": e.origin, "how": how}


def _first(spellings: tuple[str, ...]) -> str:
    return spellings[0] if spellings else ""


def _import(framework: str) -> None:
    if framework not in installed():
        raise typer.BadParameter(
            f"unknown framework {framework!r}; adapters are installed for: {', '.join(sorted(installed()))}"
        )
    try:
        importlib.import_module(framework)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{framework} is not installed; pip install 'unamp[{framework}]'") from error


def _checked(make: Callable[[], T]) -> T:
    """What `make` returns; what it says of bad arguments becomes a message of the command line."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error


def _print_json(data: object) -> None:
    print(json.dumps(data, indent=2))


def _show(table: Table) -> None:
    # A table in a pipe or a file must not be folded to the 80 columns of a terminal that is not there.
    # No markup: `unamp[torch]` is the name of an extra, not a style.
    terminal = Console(markup=False)
    console = terminal if terminal.is_terminal else Console(markup=False, width=200)
    console.print(table)


_mount_commands()
