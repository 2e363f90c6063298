"""Options and checks that several commands share, and the user's functions that commands name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer

from unamp.adapter.registry import installed
from unamp.dtypes import LOW_DTYPES, POLICY_DTYPES
from unamp.errors import shortened, unknown

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


def function_named(said: str) -> Callable[[], object]:
    """Return the function that an argument names; raise typer.BadParameter where it is missing."""
    where, colon, name = said.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise typer.BadParameter(
            f"{shortened(said)} is none; name a function as module:function or file.py:function"
        )
    function = getattr(module_named(where), name, None)
    if not callable(function):
        raise typer.BadParameter(f"{where} has no function {name!r}")
    found: Callable[[], object] = function
    return found


def module_named(where: str) -> ModuleType:
    """Import the module or file that is named; raise typer.BadParameter where it is missing."""
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None or not Path(where).is_file():
            raise typer.BadParameter(f"{where}: there is no such file")
        sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise
        raise typer.BadParameter(
            f"there is no module {where!r} here; name one, or a file (train.py)"
        ) from error
