"""The commands of `unamp`, one function each.

Commands of other distributions are mounted through the entry-point group `unamp.commands`: the entry point's name is the
command, its object a `typer.Typer`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

import unamp
from unamp import _showing
from unamp._doctor import examine_all
from unamp._entry_points import entry_points
from unamp._showing import print_json, show
from unamp.adapter import DEVICES
from unamp.comparing import compare_traces
from unamp.explaining import Explanation, differences, explain
from unamp.policy import LEVELS, Decision, Policy
from unamp.presets import PRESETS, preset
from unamp.registry import installed
from unamp.tracing import Trace
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
        print_json(reports)
        return
    table = Table("framework", "version", "device", "float16", "bfloat16", title="what runs here, and how")
    for report in reports:
        if report["status"] != "ready":
            table.add_row(report["framework"], report["status"], report["advice"])
            continue
        for device, support in report["devices"].items():
            words = (support["float16"], support["bfloat16"]) if support else ("device not present", "")
            how = map(_showing.support, words)
            table.add_row(report["framework"], report["version"], device, *how)
    show(table)
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
        print_json({op.name: _as_data(op) for op in vocabulary().values()})
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
        print_json({op: _explained_as_data(e) for op, e in explained.items()})
        return
    where = sorted({place for e in explained.values() for place in e.how})
    table = Table("operation", "rule", "comes from", *(" on ".join(place) for place in where))
    for op, e in explained.items():
        how = (_showing.support(e.how[place].value) for place in where)
        table.add_row(op, _showing.rule(e.rule), e.origin, *how)
    show(table)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="PRESET", help="The lists that you know.")],
    after: Annotated[str, typer.Argument(metavar="PRESET", help="The lists that you move to.")],
    level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "O1",
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16",
    trace: Annotated[Path | None, typer.Option(help="A trace's JSON: show only what ran in it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the operations whose rule changes from one preset to another: for all networks, or for one that was traced."""
    found = _checked(lambda: differences(Policy(level, dtype, preset=before), Policy(level, dtype, preset=after)))
    ran: dict[str, int] | None = None
    if trace is not None:
        ran = {}
        for record in _read_trace(trace).records:
            ran[record.op] = ran.get(record.op, 0) + 1
        found = {op: found[op] for op in ran if op in found}
    if as_json:
        operations = {
            op: {"before": _decided(a), "after": _decided(b), **({} if ran is None else {"times": ran[op]})}
            for op, (a, b) in found.items()
        }
        print_json({"before": before, "after": after, "level": level, "dtype": dtype, "operations": operations})
        return
    table = Table("operation", *(() if ran is None else ("times",)), before, after, "came from", "comes from")
    for op, (a, b) in found.items():
        times = () if ran is None else (str(ran[op]),)
        table.add_row(op, *times, _showing.rule(a.rule), _showing.rule(b.rule), a.origin, b.origin)
    table.title = f"{len(found)} operations change at {level} in {dtype}" + (
        "" if ran is None else f", of the {len(ran)} that ran"
    )
    show(table)


@app.command("trace")
def trace_command(
    trace: Annotated[Path, typer.Argument(help="What Trace.to_json() wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a page here instead, with a picture of the network.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a recorded trace: what ran, in which layer and precision, and how often."""
    recorded = _read_trace(trace)
    if html is not None:
        page = _checked(lambda: recorded.to_html(title=trace.stem))
        html.write_text(page, "utf-8")
        return
    if as_json:
        lines = [{**line._asdict(), "rule": line.rule.value} for line in recorded.summary()]
        print_json({"frameworks": recorded.frameworks, "never_ran": recorded.never_ran, "lines": lines})
        return
    print(recorded.table())


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(help="The trace of the run that is right, in float32 say.")],
    other: Annotated[Path, typer.Argument(help="The trace of the other run.")],
    limit: Annotated[int | None, typer.Option(help="Show so many operations.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Hold two recorded traces against each other, the operation with the largest relative error first."""
    compared = _checked(lambda: compare_traces(_read_trace(reference), _read_trace(other)))
    if as_json:
        data = compared.to_data()
        print_json({**data, "operations": data["operations"][:limit]})
        return
    print(compared.table(limit))


def _read_trace(path: Path) -> Trace:
    try:
        return Trace.from_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _decided(decision: Decision) -> dict[str, Any]:
    return {"rule": decision.rule.value, "origin": decision.origin, "advice": decision.advice}


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
    show(table)


def _show_operation(op: Operation, as_json: bool) -> None:
    rules = {name: Policy(preset=name).decide(op.name) for name in PRESETS if not preset(name).delegates}
    if as_json:
        print_json({"name": op.name, **_as_data(op), "rules": {name: rule.value for name, rule in rules.items()}})
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
        table.add_row(f"preset {name}", _showing.rule(rule) + " at O1")
    show(table)


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


_mount_commands()
