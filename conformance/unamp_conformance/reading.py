"""Reading ``results.json``. It may come from anywhere: whatever is wrong with it is one clear error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from unamp._strict_json import BadJSON, parsed
from unamp_conformance.results import READABLE, STATUSES, BadResults, FrameworkRun, Report, Result

__all__ = ["load", "results_from"]

_LISTED = " and ".join(map(str, READABLE))
_DIGITS = 18  # of a whole number: whatever is longer counts nothing that a run has

_T = TypeVar("_T")
_Reader = Callable[[str, Any], _T]  # ``read(where, value)`` gives the value, or raises BadResults that says where


def load(path: Path) -> Report:
    """Read what `unamp_conformance.results.save` wrote.

    Raises:
        BadResults: naming the file and what is wrong with it.
        OSError: where it cannot be read.
    """
    try:
        return _report(_parsed(path.read_text("utf-8")))
    except BadResults as error:
        raise BadResults(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise BadResults(f"{path}: not JSON: it is no UTF-8") from error


def results_from(data: Any) -> tuple[Result, ...]:
    """Return the results of a list that `unamp_conformance.results.sayable` said.

    Raises:
        BadResults: where it is something else.
    """
    return _each(_result)("results", data)


def _parsed(text: str) -> Any:
    try:
        return parsed(text)
    except BadJSON as error:
        raise BadResults(str(error)) from error


def _report(data: Any) -> Report:
    if not isinstance(data, dict) or "schema" not in data:
        raise BadResults("no results file of unamp conformance: it has no 'schema'")
    if (schema := data.pop("schema")) not in READABLE:
        raise BadResults(
            f"written by another version of unamp, with schema {str(schema)[:20]}; this one reads schemas {_LISTED}"
        )
    return Report(**_object(Report, data, {"host": _mapping(_text), "selection": _mapping(_anything), "runs": _each(_run)}))


def _run(where: str, data: Any) -> FrameworkRun:
    kinds: dict[str, _Reader[Any]] = {"results": _each(_result), "problems": _each(_text), "seconds": _number}
    kinds |= {"facts": _mapping(_fact), "variables": _mapping(_text)}
    return FrameworkRun(**_object(FrameworkRun, data, kinds, where))


def _result(where: str, data: Any) -> Result:
    found = Result(**_object(Result, data, {"details": _details, "seconds": _number}, where))
    if found.status not in STATUSES:
        raise BadResults(f"{where}: unknown status {found.status[:40]!r}; valid: {', '.join(STATUSES)}")
    return found


def _object(kind: type, data: Any, kinds: Mapping[str, _Reader[Any]], where: str = "the file") -> dict[str, Any]:
    """Return the fields of a dataclass: those that are named, each read by its reader, and all others text."""
    _mapping(_anything)(where, data)
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(set(data) - set(known)):
        raise BadResults(f"{where}: unknown field {unknown[0][:40]!r}")
    needed = [n for n, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in data]:
        raise BadResults(f"{where}: {missing[0]!r} is missing")
    readers: dict[str, _Reader[Any]] = {**dict.fromkeys(known, _text), **kinds}
    return {name: readers[name](f"{where}, {name}", value) for name, value in data.items()}


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadResults(f"{where}: must be text, not {type(value).__name__}")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadResults(f"{where}: must be a number, not {type(value).__name__}")
    return value


def _fact(where: str, value: Any) -> bool | int | str:
    if not isinstance(value, bool | int | str):
        raise BadResults(f"{where}: must be a boolean, a whole number or text, not {type(value).__name__}")
    return value


def _number_or_nothing(where: str, value: Any) -> float | None:
    return None if value is None else _number(where, value)


def _anything(where: str, value: Any) -> Any:
    return value


def _each(read: _Reader[_T]) -> _Reader[tuple[_T, ...]]:
    def read_all(where: str, value: Any) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise BadResults(f"{where}: must be a list, not {type(value).__name__}")
        return tuple(read(f"{where} {n}", part) for n, part in enumerate(value, 1))

    return read_all


def _mapping(read: _Reader[_T]) -> _Reader[dict[str, _T]]:
    def read_all(where: str, value: Any) -> dict[str, _T]:
        if not isinstance(value, dict):
            raise BadResults(f"{where}: must be an object, not {type(value).__name__}")
        return {name: read(f"{where}, {name[:40]}", part) for name, part in value.items()}

    return read_all


def _details(where: str, value: Any) -> dict[str, Any]:
    found = _mapping(_anything)(where, value)
    for name in found.keys() & _DETAILS.keys():
        _DETAILS[name](f"{where}, {name}", found[name])
    return found


#: The details that others compute with; any other is only ever shown.
_DETAILS: Mapping[str, _Reader[object]] = {
    "error": _number_or_nothing,
    "bound": _number,
    "output bound": _number,
    "count": _number,
    "sample": _each(_number),
    "trace": _each(_text),
    "seen": _each(_text),
    "traceback": _each(_text),
}
