"""The command `unamp`, with a function for each of its commands.

Other distributions add commands through the entry-point group `unamp.commands`: the entry point's
name is the command, and its object is a `typer.Typer`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from unamp._entry_points import entry_points
from unamp._version import __version__
from unamp.cli import policies, traces
from unamp.cli.arguments import AsJson
from unamp.cli.doctor import examine_all, show_frameworks, show_gaps, show_machine
from unamp.cli.drift import drift
from unamp.cli.export_lists import export_lists_command
from unamp.cli.migrate import migrate
from unamp.cli.onnx import onnx_command
from unamp.cli.printing import print_json
from unamp.cli.tune import tune_command

app = typer.Typer(
    name="unamp",
    help="One automatic-mixed-precision policy for every deep-learning framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    as_json: AsJson = False,
    gaps: Annotated[bool, typer.Option("--gaps", help="List what the adapters cannot do.")] = False,
) -> None:
    """Show the frameworks: versions, devices, instruction sets, and dtypes, native or emulated.

    Exits with 1 where a framework is installed and cannot be used.
    """
    found = examine_all()
    reports = found["frameworks"]
    if as_json:
        print_json(found)
    else:
        show_frameworks(reports)
        show_machine(found)
        show_gaps(reports, listed=gaps)
    if any(report["status"] == "not usable" for report in reports):
        raise typer.Exit(1)


app.command("ops")(policies.ops)
app.command("explain")(policies.explain_command)
app.command("diff")(policies.diff)
app.command("drift")(drift)
app.command("trace")(traces.trace_command)
app.command("compare")(traces.compare)
app.command("replay")(traces.replay_command)
app.command("tune")(tune_command)
app.command("migrate")(migrate)
app.command("onnx")(onnx_command)
app.command("export-lists")(export_lists_command)


def _mount_commands() -> None:
    for point in entry_points("unamp.commands"):
        try:
            app.add_typer(point.load(), name=point.name)
        except ModuleNotFoundError as error:
            _mount_missing(
                point.name,
                f"needs {error.name}",
                f"needs {error.name}, which is not installed; pip install 'unamp[conformance]'",
            )
        except ImportError as error:  # the distribution is installed, but broken
            said = " ".join(str(error).split())
            _mount_missing(
                point.name, f"{error.name or point.value} cannot be imported",
                f"cannot be imported ({said}); reinstall {error.name or point.value}, "
                "or what installed it",
            )  # fmt: skip


def _mount_missing(command: str, why: str, advice: str) -> None:
    @app.command(
        command, help=f"Not available: {why}.", context_settings={"ignore_unknown_options": True}
    )
    def missing(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        raise SystemExit(f"`unamp {command}` {advice}")


_mount_commands()
