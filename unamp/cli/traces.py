"""The commands about recorded traces: `trace` and `compare`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from unamp import tracing
from unamp.cli.arguments import AsJson, checked, import_framework, write_file
from unamp.cli.printing import print_json
from unamp.tracing import LayerMapping, Trace, compare_traces, replay

T = TypeVar("T")


def trace_command(
    trace: Annotated[Path, typer.Argument(help="What Trace.to_json() wrote.")],
    html: Annotated[
        Path | None, typer.Option(help="Write a page here instead, with a picture of the network.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a recorded trace: what ran, in which layer and precision, and how often."""
    recorded = read_trace(trace)
    if html is not None:
        write_file(html, checked(lambda: recorded.to_html(title=trace.stem)))
        return
    if as_json:
        lines = [
            {**line._asdict(), "rule": line.rule.value, "work": line.work._asdict()}
            for line in recorded.summary()
        ]
        data = {"frameworks": recorded.frameworks, "never_ran": recorded.never_ran, "lines": lines}
        if recorded.shadow is not None:
            lost = [_plain(line._asdict()) for line in recorded.shadow_summary()]
            data["shadow"] = {"dtype": recorded.shadow, "lines": lost}
        if recorded.keeps_gradients:
            data["gradients"] = [_plain(line._asdict()) for line in recorded.gradient_summary()]
        print_json(data)
        return
    print(recorded.table())
    if recorded.shadow is not None:
        print(f"\n{recorded.shadow_table()}")
    if recorded.keeps_gradients:
        print(f"\n{recorded.gradient_table()}")


def compare(
    reference: Annotated[
        Path, typer.Argument(help="The trace of the run that is right, in float32 say.")
    ],
    other: Annotated[Path, typer.Argument(help="The trace of the other run.")],
    layers: Annotated[
        Path | None, typer.Option(help="A file that says which layers are the same.")
    ] = None,
    propose_layers: Annotated[
        Path | None,
        typer.Option(
            help="Write such a file instead, for you to correct; it must not be there yet."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Show so many operations.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two recorded traces, the operation with the largest relative error first.

    Exits with 1 where an operation moved further than its precision explains.
    """
    traces = read_trace(reference), read_trace(other)
    if propose_layers is not None:
        if layers is not None:
            raise typer.BadParameter(
                "--propose-layers writes the file that --layers reads: give one of them"
            )
        _write_proposal(propose_layers, checked(lambda: tracing.propose_layers(*traces).to_toml()))
        return
    mapping = None if layers is None else _read(layers, LayerMapping.from_toml, "mapping of layers")
    compared = checked(lambda: compare_traces(*traces, layers=mapping))
    if as_json:
        data = compared.to_data()
        print_json({**data, "operations": data["operations"][:limit]})
    else:
        print(compared.table(limit))
    if not compared.within:
        raise typer.Exit(1)


def replay_command(
    trace: Annotated[
        Path,
        typer.Argument(
            help="What Trace.to_json() wrote, in the folder that the trace kept its calls in."
        ),
    ],
    number: Annotated[int, typer.Argument(help="The operation: 1 is the first record.")],
    framework: Annotated[
        str | None, typer.Option(help="Run it in this framework; else in the one that it ran in.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one recorded operation again, alone, on its own inputs: in float64, float32 and low.

    Exits with 1 where the result of the run is further from float64 than its precision explains.
    """
    recorded = read_trace(trace)
    used = framework or (
        recorded.records[number - 1].framework if 1 <= number <= len(recorded.records) else ""
    )
    if used:
        import_framework(used)
    again = checked(lambda: replay(recorded, number, trace.parent, framework=framework))
    if as_json:
        print_json(again.to_data())
    else:
        print(again.table())
    if not again.within:
        raise typer.Exit(1)


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """Return a line's fields for JSON, which has no infinities."""
    return {
        name: "inf" if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }


def _write_proposal(path: Path, text: str) -> None:
    if path.exists():
        raise typer.BadParameter(f"{path}: is there already; give another name, or remove it")
    write_file(path, text, "x")  # "x": never overwrite a file that a person has corrected
    print(f"{path}: correct it, then: unamp compare ... --layers {path}")


def read_trace(path: Path) -> Trace:
    """Return the trace in a file; an error about the file becomes a message of the command line."""
    return _read(path, Trace.from_json, "trace")


def _read(path: Path, read: Callable[[str], T], called: str) -> T:
    try:
        return read(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path}: this is no {called}: it is no UTF-8") from error
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {getattr(error, 'strerror', None) or error}") from error
