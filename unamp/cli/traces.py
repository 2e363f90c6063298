"""The commands about recorded traces: `trace` and `compare`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from unamp.cli.arguments import AsJson, checked
from unamp.cli.printing import print_json
from unamp.tracing import Trace, compare_traces

__all__ = ["compare", "read_trace", "trace_command"]


def trace_command(
    trace: Annotated[Path, typer.Argument(help="What Trace.to_json() wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a page here instead, with a picture of the network.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a recorded trace: what ran, in which layer and precision, and how often."""
    recorded = read_trace(trace)
    if html is not None:
        page = checked(lambda: recorded.to_html(title=trace.stem))
        html.write_text(page, "utf-8")
        return
    if as_json:
        lines = [{**line._asdict(), "rule": line.rule.value, "work": line.work._asdict()} for line in recorded.summary()]
        data = {"frameworks": recorded.frameworks, "never_ran": recorded.never_ran, "lines": lines}
        if recorded.shadow is not None:
            lost = ((line, line.error if math.isfinite(line.error) else "inf") for line in recorded.shadow_summary())
            data["shadow"] = {"dtype": recorded.shadow, "lines": [{**line._asdict(), "error": error} for line, error in lost]}
        if recorded.keeps_gradients:
            found = ((line, line.max_abs if math.isfinite(line.max_abs) else "inf") for line in recorded.gradient_summary())
            data["gradients"] = [{**line._asdict(), "max_abs": largest} for line, largest in found]
        print_json(data)
        return
    print(recorded.table())
    if recorded.shadow is not None:
        print(f"\n{recorded.shadow_table()}")
    if recorded.keeps_gradients:
        print(f"\n{recorded.gradient_table()}")


def compare(
    reference: Annotated[Path, typer.Argument(help="The trace of the run that is right, in float32 say.")],
    other: Annotated[Path, typer.Argument(help="The trace of the other run.")],
    limit: Annotated[int | None, typer.Option(help="Show so many operations.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Hold two recorded traces against each other, the operation with the largest relative error first.

    Exits with 1 where an operation moved further than its precision explains.
    """
    compared = checked(lambda: compare_traces(read_trace(reference), read_trace(other)))
    if as_json:
        data = compared.to_data()
        print_json({**data, "operations": data["operations"][:limit]})
    else:
        print(compared.table(limit))
    if not compared.within:
        raise typer.Exit(1)


def read_trace(path: Path) -> Trace:
    """Return the trace in a file; an error about the file becomes a message of the command line."""
    try:
        return Trace.from_json(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path}: this is no trace: it is no UTF-8") from error
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {getattr(error, 'strerror', None) or error}") from error
