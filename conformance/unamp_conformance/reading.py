"""Reading ``results.json``, which may come from anywhere.

Any defect of the file raises one clear error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from unamp._strict_json import (
    BadJSON,
    Reader,
    each,
    expect,
    fields,
    mapping,
    number,
    optional,
    parsed,
    text,
)
from unamp_conformance.results import READABLE, STATUSES, BadResults, FrameworkRun, Report, Result

__all__ = ["load", "results_from"]

_LISTED = " and ".join(map(str, READABLE))


def load(path: Path) -> Report:
    """Read the file that `unamp_conformance.results.save` wrote.

    Raises:
        BadResults: for a bad file; the message names it and says what is wrong.
        OSError: where it cannot be read.
    """
    try:
        return _report(parsed(path.read_text("utf-8")))
    except BadJSON as error:
        raise BadResults(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise BadResults(f"{path}: not JSON: it is no UTF-8") from error


def results_from(data: Any) -> tuple[Result, ...]:
    """Return the results of a list of those that `unamp_conformance.results.sayable` made.

    Raises:
        BadResults: where it is something else.
    """
    try:
        return each(_result)("results", data)
    except BadJSON as error:
        raise BadResults(str(error)) from error


def _report(data: Any) -> Report:
    if not isinstance(data, dict) or "schema" not in data:
        raise BadJSON("no results file of unamp conformance: it has no 'schema'")
    if (schema := data.pop("schema")) not in READABLE:
        raise BadJSON(
            f"written by another version of unamp, with schema {str(schema)[:20]}; "
            f"this one reads schemas {_LISTED}"
        )
    return Report(
        **_object(
            Report,
            data,
            {"host": mapping(text), "selection": mapping(_anything), "runs": each(_run)},
        )
    )


def _run(where: str, data: Any) -> FrameworkRun:
    kinds: dict[str, Reader[Any]] = {
        "results": each(_result),
        "problems": each(text),
        "seconds": number,
    }
    kinds |= {"facts": mapping(_fact), "variables": mapping(text)}
    return FrameworkRun(**_object(FrameworkRun, data, kinds, where))


def _result(where: str, data: Any) -> Result:
    found = Result(**_object(Result, data, {"details": _details, "seconds": number}, where))
    if found.status not in STATUSES:
        raise BadJSON(
            f"{where}: unknown status {found.status[:40]!r}; valid: {', '.join(STATUSES)}"
        )
    return found


def _object(
    kind: type, data: Any, kinds: Mapping[str, Reader[Any]], where: str = "the file"
) -> dict[str, Any]:
    """Return the fields of a dataclass, read from data.

    Fields in `kinds` are read by their reader, and all others as text.
    """
    known = {field.name: field for field in fields_of(kind)}
    needed = [
        n
        for n, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    ]
    readers: dict[str, Reader[Any]] = {**dict.fromkeys(known, text), **kinds}
    return {
        name: readers[name](f"{where}, {name}", value)
        for name, value in fields(where, data, known, needed).items()
    }


def _fact(where: str, value: Any) -> bool | int | str:
    if not isinstance(value, bool | int | str):
        raise BadJSON(
            f"{where}: must be a boolean, a whole number or text, not {type(value).__name__}"
        )
    return value


def _anything(where: str, value: Any) -> Any:
    return value


def _details(where: str, value: Any) -> dict[str, Any]:
    found: dict[str, Any] = expect(where, value, dict, "an object")
    for name in found.keys() & _DETAILS.keys():
        _DETAILS[name](f"{where}, {name}", found[name])
    return found


#: The details that are computed with; all others are only shown.
_DETAILS: Mapping[str, Reader[object]] = {
    "error": optional(number),
    "bound": number,
    "output bound": number,
    "count": number,
    "sample": each(number),
    "trace": each(text),
    "seen": each(text),
    "traceback": each(text),
}
