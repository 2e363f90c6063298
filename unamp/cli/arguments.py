"""Options and checks that several commands share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from unamp.adapter.registry import installed
from unamp.dtypes import LOW_DTYPES, POLICY_DTYPES
from unamp.errors import unknown

T = TypeVar("T")

#: The low dtypes, as text.
LOW = " or ".join(LOW_DTYPES)

#: The dtypes of a policy, as text.
DTYPES = " or ".join(POLICY_DTYPES)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def given(**options: object) -> dict[str, Any]:
    """Return the options that were given, by name."""
    return {name: value for name, value in options.items() if value is not None}


def write_file(path: Path, text: str, mode: str = "w") -> None:
    """Write a text to a file; raise typer.BadParameter where the file cannot be written."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}") from error


def checked(make: Callable[[], T]) -> T:
    """Return `make()`; turn its errors about bad arguments into typer.BadParameter."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error


def import_framework(framework: str) -> None:
    """Import a framework; raise typer.BadParameter where it is unknown or cannot be imported."""
    if framework not in installed():
        raise typer.BadParameter(
            unknown("framework", framework, sorted(installed()), "adapters are installed for")
        )
    try:
        importlib.import_module(framework)
    except ImportError as error:
        if error.name == framework:
            raise typer.BadParameter(
                f"{framework} is not installed; pip install 'unamp[{framework}]'"
            ) from error
        raise typer.BadParameter(
            f"{framework} is installed and cannot be imported: {error}"
        ) from error
