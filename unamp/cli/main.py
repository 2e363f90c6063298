"""The entry point of the command `unamp`.

The extra `conformance` installs the packages that it needs beyond the standard library.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from unamp.cli.commands import app
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("rich", "typer"):
            raise
        sys.exit(
            f"the command `unamp` needs {package}, which is not installed; "
            "pip install 'unamp[conformance]'"
        )
    app()
