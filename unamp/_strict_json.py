"""JSON from elsewhere, read strictly: one kind of error, whatever is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["BadJSON", "expect", "items", "number", "optional", "parsed", "text", "whole"]

_DIGITS = 18  # of a whole number: whatever is longer counts nothing that a file of ours has
_SHOWN = 40  # characters of what somebody wrote, in a message


class BadJSON(ValueError):
    """A text is no JSON, or something in it is not what belongs there; the message says where and what."""


def parsed(source: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        BadJSON: for what is no JSON, for numbers that are not finite or too long, for an object that names a field twice, and
            for what is nested too deeply.
    """
    hooks = {"parse_constant": _no_number, "parse_float": _float, "parse_int": _int, "object_pairs_hook": _without_doubles}
    try:
        return json.loads(source, **hooks)  # type: ignore[arg-type]
    except json.JSONDecodeError as error:
        raise BadJSON(f"not JSON: {error}") from error
    except RecursionError:
        raise BadJSON("nested too deeply") from None


def _no_number(source: str) -> NoReturn:
    raise BadJSON(f"{source} is no number of JSON")


def _float(source: str) -> float:
    if not math.isfinite(value := float(source)):
        raise BadJSON(f"the number {source[:_SHOWN]} is too large")
    return value


def _int(source: str) -> int:
    if len(source) > _DIGITS:
        raise BadJSON(f"the number {source[:_SHOWN]}... is too large")
    return int(source)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadJSON("an object names the same field twice")
    return found


def expect(where: str, value: Any, kind: type, called: str) -> Any:
    """Return a value that is of a kind; a boolean is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadJSON(f"{where} must be {called}, not {type(value).__name__}")
    return value


def text(where: str, value: Any) -> str:
    """Return a text that a terminal shows as it is: nothing in it is obeyed."""
    found: str = expect(where, value, str, "text")
    if not found.isprintable():
        raise BadJSON(f"{where} must be printable text, not {found[:_SHOWN]!r}")
    return found


def whole(where: str, value: Any) -> int:
    """Return a whole number that counts something."""
    found: int = expect(where, value, int, "a whole number")
    if found < 0:
        raise BadJSON(f"{where} must not be negative")
    return found


def number(where: str, value: Any) -> float:
    """Return a number; what JSON has no number for is written ``"inf"``, ``"-inf"`` and ``"nan"``."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadJSON(f"{where} must be a number, not {type(value).__name__}")
    return float(value)


def items(where: str, value: Any, read: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    """Return the items of a list, each read by `read`."""
    found = expect(where, value, list, "a list")
    return tuple(read(f"{where} {n}", item) for n, item in enumerate(found, 1))


def optional(where: str, value: Any, read: Callable[[str, Any], Any]) -> Any:
    """Return None for null, and what `read` gives for anything else."""
    return None if value is None else read(where, value)
