"""Load the user's functions that a command names: `module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import typer

from unamp.errors import shortened


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
