"""The command `onnx`: check an ONNX file against a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from unamp.cli import printing
from unamp.cli.arguments import AsJson
from unamp.cli.precisions import read_precision
from unamp.onnx import BadModel, CheckedModel, CheckedNode, check

T = TypeVar("T")

#: Verdicts, the worst first, each with its colour and its sentence about several nodes.
_VERDICTS = {
    "differs": ("bold red", "differ from the policy"),
    "invalid": ("bold red", "are invalid"),
    "unclear": ("yellow", "are unclear"),
    "wider inside": ("yellow", "are wider inside an operation that follows it"),
    "follows": ("green", "follow it"),
}


def onnx_command(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    policy: Annotated[
        Path, typer.Option(help="A precision.toml: the policy that the file is to follow.")
    ],
    every: Annotated[
        bool, typer.Option("--nodes", help="List every node, those that follow the policy, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an ONNX file against a policy: its nodes' dtypes, needless casts, weights stored wide.

    Exits with 1 where a node differs from the policy or is invalid, and where a rule for layers
    matches no layer of the file.
    """
    precision = read_precision(policy)
    checked = read_model(model, lambda: check(model, precision))
    if as_json:
        printing.print_json(checked.to_data())
    else:
        _show(checked, every)
    if not checked.follows:
        raise typer.Exit(1)


def read_model(model: Path | None, read: Callable[[], T]) -> T:
    """Return `read()`; turn its errors about the ONNX file into typer.BadParameter."""
    try:
        return read()
    except OSError as error:
        raise typer.BadParameter(f"{model}: {error.strerror or error}") from error
    except BadModel as error:
        raise typer.BadParameter(f"{model}: {error}") from error
    except (ModuleNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _show(checked: CheckedModel, every: bool) -> None:
    counted = Counter(node.verdict for node in checked.nodes)
    told = [
        f"{counted[verdict]} {many}" for verdict, (_, many) in _VERDICTS.items() if counted[verdict]
    ]
    printing.say(
        f"{len(checked.nodes)} nodes compute with floating numbers: "
        f"{', '.join(told) or 'none of them'}"
    )
    for pattern in checked.unmatched:
        printing.say(
            f"rule {pattern!r} matches no layer of the file, or the file does not name its layers"
        )
    if not every:
        _show_groups(checked.nodes)
    _show_nodes(node for node in checked.nodes if every or node.verdict != "follows")
    casts = Table("cast", "why", title=f"casts that can go: {len(checked.casts)}")
    for cast in checked.casts:
        casts.add_row(printing.printable(cast.name), printing.printable(cast.why))
    weights = Table(
        "weight",
        "stored in",
        "used in",
        "bytes",
        title=f"weights that are stored wide: {len(checked.weights)}",
    )
    for weight in checked.weights:
        weights.add_row(
            printing.printable(weight.name), weight.stored, weight.used, f"{weight.saved} fewer"
        )
    for table in (casts, weights):
        if table.rows:
            printing.show(table)


def _show_groups(nodes: Iterable[CheckedNode]) -> None:
    table = Table(
        "operation", "computes in", "policy", "nodes", "", title="what computes in which dtype"
    )
    groups = Counter((_operations(node), node.dtype, node.expected, node.verdict) for node in nodes)
    for (operation, dtype, expected, verdict), times in sorted(groups.items()):
        table.add_row(operation, dtype, expected, str(times), _verdict(verdict))
    printing.show(table)


def _show_nodes(nodes: Iterable[CheckedNode]) -> None:
    table = Table("node", "type", "operation", "layer", "computes in", "policy", "", "why")
    for node in nodes:
        layer = "unknown" if node.layer is None else printing.printable(node.layer)
        said = (
            printing.printable(node.name),
            printing.printable(node.type),
            _operations(node),
            layer,
            node.dtype,
            node.expected,
        )
        table.add_row(*said, _verdict(node.verdict), node.why)
    if table.rows:
        printing.show(table)


def _operations(node: CheckedNode) -> str:
    return " or ".join(node.operations) or f"{printing.printable(node.type)}, which has no name"


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=_VERDICTS[verdict][0])
