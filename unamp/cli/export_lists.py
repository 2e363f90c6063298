"""The command `export-lists`: a policy as arguments of a tool that converts exported models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unamp.cli import printing
from unamp.cli.arguments import AsJson
from unamp.cli.onnx import read_model
from unamp.cli.precisions import read_precision
from unamp.exporting import TOOLS, export_lists


def export_lists_command(
    policy: Annotated[Path, typer.Argument(help="A precision.toml.")],
    tool: Annotated[
        str, typer.Option("--for", help=f"The tool that is to convert: {', '.join(TOOLS)}.")
    ],
    model: Annotated[
        Path | None, typer.Option(help="The float32 ONNX file to convert, to name its nodes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the arguments with which another tool converts a model by a policy, as Python.

    Exits with 1 where the policy says something that the arguments do not; it is printed first.
    """
    precision = read_precision(policy)
    lists = read_model(model, lambda: export_lists(precision, tool, model))
    if as_json:
        printing.print_json(
            {"tool": lists.tool, "arguments": lists.arguments, "unsaid": lists.unsaid}
        )
    else:
        for sentence in lists.unsaid:
            # a name with a line break would end the comment, and the rest would be code
            print(f"# not said: {printing.printable(sentence)}")
        print(lists.code, end="")
    if lists.unsaid:
        raise typer.Exit(1)
