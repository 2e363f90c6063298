"""Options and checks that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from unamp.dtypes import LOW_DTYPES, POLICY_DTYPES

__all__ = ["DTYPES", "LOW", "AsJson", "checked"]

T = TypeVar("T")

#: The low dtypes, for a person.
LOW = " or ".join(LOW_DTYPES)

#: The dtypes of a policy, likewise.
DTYPES = " or ".join(POLICY_DTYPES)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def checked(make: Callable[[], T]) -> T:
    """Return the value that `make` returns; an error about bad arguments becomes a message of the command line."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
