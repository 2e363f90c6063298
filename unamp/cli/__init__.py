"""The command `unamp`."""

from unamp.cli.main import main

__all__ = ["main"]
