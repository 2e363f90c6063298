"""The tables of spellings under `data/migrate`: each name in its dialect and in plain unamp."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from unamp._data import load_table, made

#: The tables, by their names in `--from`.
FRAMEWORKS = ("torch", "apex", "paddle", "mindspore", "tensorflow", "jax")
_FILES = {"tensorflow": "keras"}
_ALSO = {"keras": "tensorflow", "tf": "tensorflow", "pytorch": "torch", "paddlepaddle": "paddle"}


class Form(NamedTuple):
    """The form of a call in plain unamp; arguments.toml describes the fields."""

    to: str
    old: tuple[str, ...]
    called: Mapping[str, str] = {}
    lead: Mapping[str, str] = {}
    explicit: Mapping[str, str] = {}
    dropped: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    by_device: bool = False
    same_words: bool = False
    value: bool = False
    note: str = ""
    noted_in_dialect: bool = False
    in_place: bool = False
    lacks: tuple[str, ...] = ()
    excluded_norms: tuple[str, ...] = ()

    @property
    def by_position(self) -> tuple[str, ...]:
        """The old arguments that can be given by position."""
        return self.old[: self.old.index("*")] if "*" in self.old else self.old

    @property
    def arguments(self) -> tuple[str, ...]:
        """The old arguments by name."""
        return tuple(name for name in self.old if name != "*")


class Row(NamedTuple):
    """One spelling; torch.toml describes the fields."""

    name: str
    framework: str
    version: str
    source: str
    dialect: str = ""
    form: Form | None = None
    why: str = ""
    hand: str = ""
    removed: str = ""
    deprecated: str = ""
    policy: str = ""
    needs: str = ""
    only_with: tuple[str, ...] = ()
    only_with_string: str = ""
    same: bool = False


class Table(NamedTuple):
    """All rows by name; modules with their dialects; roots and usual names with their frameworks.

    The modules hold only mixed precision. `usual` has the names under which a project's own modules
    usually export a framework.
    """

    rows: Mapping[str, Row]
    modules: Mapping[str, str]
    roots: Mapping[str, str]
    usual: Mapping[str, str]

    def dialect_of(self, name: str) -> str:
        """Return the dialect's name of a row or a module; empty where there is none."""
        row = self.rows.get(name)
        return self.modules.get(name, "") if row is None else row.dialect

    def row_of(self, name: str) -> tuple[Row, int] | None:
        """Return the row of a dotted name's longest known start, and the number of parts left."""
        parts = name.split(".")
        for count in range(len(parts), 1, -1):
            if row := self.rows.get(".".join(parts[:count])):
                return row, len(parts) - count
        return None

    def module_of(self, name: str) -> str | None:
        """Return the innermost module of mixed precision that a dotted name is, or is in."""
        parts = name.split(".")
        inside = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((each for each in inside if each in self.modules), None)

    def framework_of(self, name: str) -> str:
        """Return the framework of a dotted name; empty where it belongs to none."""
        return self.roots.get(name.partition(".")[0], "")


class Watch(NamedTuple):
    """Names that are reported without being resolved; watch.toml describes the fields."""

    strings: frozenset[str]
    keywords: frozenset[str]
    attributes: frozenset[str]
    casts: frozenset[str]
    takers: frozenset[str]
    dtypes: frozenset[str]
    #: MindSpore's method that makes a cell compute in a dtype.
    cell: str
    #: The fields of the finding for a string that another library takes.
    strings_of: Mapping[str, Mapping[str, str]]


def framework_named(name: str) -> str:
    """Return the table that a word of `--from` names.

    Raises:
        ValueError: where the word is unknown.
    """
    found = _ALSO.get(name, name)
    if found not in FRAMEWORKS:
        raise ValueError(f"unknown framework {name!r}; valid: {', '.join(FRAMEWORKS)}")
    return found


@cache
def table() -> Table:
    """Return all tables as one."""
    forms = {
        name: made(Form, data)
        for name, data in load_table("migrate/arguments.toml").items()
        if name != "schema"
    }
    rows: dict[str, Row] = {}
    modules: dict[str, str] = {}
    roots: dict[str, str] = {}
    usual: dict[str, str] = {}
    for framework in FRAMEWORKS:
        data = load_table(f"migrate/{_FILES.get(framework, framework)}.toml")
        roots |= dict.fromkeys(data["roots"], framework)
        usual |= data.get("usual", {})
        modules |= {module["name"]: module.get("dialect", "") for module in data["modules"]}
        for entry in data["rows"]:
            form = forms[entry.pop("form")] if "form" in entry else None
            names = (entry["name"], *entry.pop("also", ()))
            usual_of_table = {"framework": framework, "version": data["version"]}
            row = made(Row, {**usual_of_table, "form": form, **entry})
            rows |= {name: row._replace(name=name) for name in names}
    return Table(rows, modules, roots, usual)


@cache
def watch() -> Watch:
    """Return the names that are reported without being resolved."""
    data = load_table("migrate/watch.toml")
    return made(Watch, {field: data[field] for field in Watch._fields})
