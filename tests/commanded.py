"""The command `unamp`, run in the process of the tests."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from unamp.cli.commands import app


def invoke(*words: object, **environment: str) -> Any:
    """Run `unamp` with arguments and a changed environment; return the outcome."""
    return CliRunner().invoke(app, list(map(str, words)), env=environment)
