"""The command `unamp`, run in the process of the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from typer import main, testing

from unamp.cli.commands import app

# to make the command of an app takes longer than most runs of it
testing._get_command = cache(main.get_command)


def invoke(*words: object, **environment: str) -> Any:
    """Run `unamp` with arguments and a changed environment; return the outcome."""
    return testing.CliRunner().invoke(app, list(map(str, words)), env=environment)
