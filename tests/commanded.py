"""The command `unamp`, run in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from unamp.cli.commands import app


def invoke(*words: object, **environment: str) -> Any:
    """Run `unamp` with some words and a changed environment, and return how it ended."""
    return CliRunner().invoke(app, list(map(str, words)), env=environment)
