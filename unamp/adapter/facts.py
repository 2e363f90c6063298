"""Data files of an adapter's package: facts in ``data/operators.toml``, and ``gaps.toml``."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib import resources
from typing import Any, TypeVar, cast

from unamp._data import made
from unamp.adapter.contract import Gap
from unamp.errors import AdapterError

T = TypeVar("T")


def read_facts(kind: type[T], package: str, file: str = "data/operators.toml") -> T:
    """Return the facts in a data file, read strictly.

    Args:
        kind: a dataclass. Each key of the file is a field of it: a set, a tuple or a mapping of
            strings, or a mapping of those, as the field's type says. The file also has ``schema``
            and ``version``; a field ``version`` takes the latter.
        package: the adapter's package, which is imported already.
        file: where the file is in it.

    Raises:
        AdapterError: for a key that is missing or that is no field; the message names the file.
    """
    data = tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))
    head = {key: data.pop(key, None) for key in ("schema", "version")}
    if head["schema"] != 1 or not isinstance(head["version"], str):
        raise AdapterError(
            f"{package}/{file} must begin with schema = 1 "
            "and the framework's version that it was measured on"
        )
    fields = {field.name for field in dataclasses.fields(cast("Any", kind))}
    if "version" in fields:
        data["version"] = head["version"]
    if unknown := data.keys() - fields:
        raise AdapterError(
            f"{package}/{file}: unknown key {min(unknown)!r}; valid: {', '.join(sorted(fields))}"
        )
    if absent := fields - data.keys():
        raise AdapterError(f"{package}/{file}: there is no key {min(absent)!r}")
    return made(kind, data)


def read_gaps(package: str) -> tuple[Gap, ...]:
    """Return the gaps that an adapter declares in its ``gaps.toml``.

    They are the tables ``[[declared]]``, with the fields of `Gap`. The file's tables ``[[gap]]``
    belong to conformance, and ``[defaults]`` has the fields that these share.

    Args:
        package: the adapter's package, which is imported already; without a file it declares none.

    Raises:
        AdapterError: for anything else in the file; the message names it.
    """
    path = resources.files(package).joinpath("gaps.toml")
    data = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    tables = data.get("declared", [])
    if not data.keys() <= {"declared", "defaults", "gap"} or not isinstance(tables, list):
        raise AdapterError(
            f"{package}/gaps.toml must hold tables [[declared]] and [[gap]]; "
            f"it has {', '.join(sorted(data))}"
        )
    for table in tables:
        strings = isinstance(table, dict) and all(
            isinstance(value, str) for value in table.values()
        )
        if not strings or not {"what", "reason"} <= table.keys() <= set(Gap._fields):
            raise AdapterError(
                f"{package}/gaps.toml: what is declared has strings what and reason, maybe a link; "
                f"not {table}"
            )
    return tuple(Gap(**table) for table in tables)
