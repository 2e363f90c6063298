"""Settings of other libraries that switch mixed precision on; settings.toml lists them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple, TypeVar

from unamp._data import load_table, made
from unamp.migrate.findings import Finding, Kind
from unamp.migrate.literals import UNKNOWN


class Setting(NamedTuple):
    """One setting; settings.toml describes the fields."""

    library: str
    keywords: tuple[str, ...]
    imports: tuple[str, ...]
    why: str
    hand: str
    values: tuple[object, ...] = ()
    anywhere: tuple[object, ...] = ()
    low_dtype: bool = False
    calls: tuple[str, ...] = ("*",)

    def switches_on(self, value: object, callee: str, roots: Set[str], *, low: bool) -> bool:
        """Return whether a value switches mixed precision on in a file that imports `roots`."""
        if not any(fnmatchcase(callee, pattern) for pattern in self.calls):
            return False
        if _is_among(value, self.anywhere):
            return True
        if roots.isdisjoint(self.imports):
            return False
        if self.low_dtype:
            return low
        return value is UNKNOWN or _is_among(value, self.values)


class Configuration(NamedTuple):
    """One setting of YAML files; settings.toml describes the fields."""

    library: str
    keys: tuple[str, ...]
    why: str
    hand: str
    values: tuple[object, ...]
    without: str = ""

    def switches_on(self, value: object) -> bool:
        """Return whether a plain value, or a section's plain values, switch mixed precision on."""
        if self.without:
            return isinstance(value, Mapping) and self.without not in value
        return _is_among(value, self.values)


EntryT = TypeVar("EntryT", Setting, Configuration)


def configured(path: tuple[str, ...], value: object, line: int, column: int) -> Finding | None:
    """Return the finding for an entry of a YAML file; None where it switches nothing on.

    Args:
        path: the keys of the entry, the outermost first.
        value: the entry's plain value; for a section, the plain values of its entries.
        line, column: the position of the entry, both from 1.
    """
    if is_section(path[-1], value):
        return Finding(line, column, Kind.LOOK, path[-1], **section_words())
    found: Configuration | Setting | None = setting_of(path[-1], value, "", frozenset(), low=False)
    if found is None:
        dotted = f".{'.'.join(path)}"
        matching = (
            each
            for each in _configurations()
            if any(dotted.endswith(f".{key}") for key in each.keys)
        )
        found = next((each for each in matching if each.switches_on(value)), None)
    said = path[-1] if isinstance(value, Mapping) else f"{path[-1]}: {value}"
    return (
        None
        if found is None
        else Finding(line, column, Kind.LOOK, said, why=found.why, hand=found.hand)
    )


def _is_among(value: object, values: tuple[object, ...]) -> bool:
    """Return whether a value is among others, with the same type: True is not 1."""
    return any(type(value) is type(each) and value == each for each in values)


def setting_of(
    keyword: str, value: object, callee: str, roots: Set[str], *, low: bool
) -> Setting | None:
    """Return the setting that a keyword with a value makes, or None.

    Args:
        value: the keyword's value; UNKNOWN where only a run knows it.
        callee: the last part of the called function's name; empty outside of calls.
        roots: the packages that the file imports.
    """
    settings = _by_keyword().get(keyword, ())
    return next(
        (each for each in settings if each.switches_on(value, callee, roots, low=low)), None
    )


@cache
def setting_words() -> frozenset[str]:
    """Return the keywords of settings, and the names of sections."""
    return frozenset(_by_keyword()) | frozenset(section_names())


def configuration_words() -> frozenset[str]:
    """Return the last keys of YAML settings, except ``type``, whose value decides."""
    return frozenset(key.rpartition(".")[2] for each in _configurations() for key in each.keys) - {
        "type"
    }


@cache
def dtype_words() -> frozenset[str]:
    """Return the keywords that are settings where they name a low dtype."""
    return frozenset(
        name for name, found in _by_keyword().items() if all(each.low_dtype for each in found)
    )


def is_section(name: object, value: object) -> bool:
    """Return whether a dictionary's entry is a section of DeepSpeed's configuration that is on."""
    key = _tables()["sections"]["key"]
    return (
        name in section_names()
        and isinstance(value, Mapping)
        and value.get(key, False) is not False
    )


def section_words() -> dict[str, Any]:
    """Return the `why` and `hand` of a finding about a section of DeepSpeed's configuration."""
    return {field: _tables()["sections"][field] for field in ("why", "hand")}


def section_names() -> tuple[str, ...]:
    """Return the names of the sections of DeepSpeed's configuration."""
    return tuple(_tables()["sections"]["names"])


@cache
def _tables() -> Mapping[str, Any]:
    return load_table("migrate/settings.toml")


@cache
def _configurations() -> tuple[Configuration, ...]:
    return tuple(_made(Configuration, entry) for entry in _tables()["configurations"])


@cache
def _by_keyword() -> Mapping[str, tuple[Setting, ...]]:
    found: dict[str, tuple[Setting, ...]] = {}
    for entry in _tables()["settings"]:
        setting = _made(Setting, entry)
        for keyword in setting.keywords:
            found[keyword] = (*found.get(keyword, ()), setting)
    return found


def _made(kind: type[EntryT], entry: Mapping[str, object]) -> EntryT:
    return made(kind, {name: value for name, value in entry.items() if name in kind._fields})
