"""The private names of a framework in an adapter's source, found without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from unamp.adapter.hooks import HookTable

#: Packages that belong to a framework: their private names are hooks, too.
FAMILY = {
    "torch": ("torch", "torchao", "keras"),
    "paddle": ("paddle",),
    "mindspore": ("mindspore",),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "jaxlib", "flax", "equinox", "haiku", "optax", "keras"),
}

_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

#: Private names of Python's own that adapters use.
_PYTHONS = frozenset(
    {"_fields", "_initializing", "_replace", "_asdict", "_lru_cache_wrapper", "_getframe"}
)


class Use(NamedTuple):
    """A private name in an adapter's source.

    It is the full path, or only the name where its owner cannot be known.
    """

    file: str
    line: int
    name: str


class Source:
    """The source of an adapter.

    Args:
        folder: the adapter's package.
        framework: the framework's import name.
        table: the adapter's table of hooks.
    """

    def __init__(self, folder: Path, framework: str, table: HookTable) -> None:
        self.family = FAMILY[framework]
        self.table = table
        self.trees = {
            path: ast.parse(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))
        }
        # A data file that lists functions names private ones, too.
        self.data = sorted(set(folder.glob("data/*.toml")) - {folder / "data" / "hooks.toml"})

    @cached_property
    def listed(self) -> frozenset[str]:
        """Return the paths in the table: modules, owners, and their names.

        The parentheses of a call are left out.
        """
        tables = (
            self.table.at_registration,
            self.table.when_used,
            self.table.on_objects,
            self.table.optional,
        )
        paths = set()
        for owner, names in (item for table in tables for item in table.items()):
            plain = owner.replace("()", "")
            parts = plain.split(".")
            paths |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
            paths |= {f"{plain}.{name}" for name in names}
        return frozenset(paths)

    @cached_property
    def last_names(self) -> frozenset[str]:
        """The last parts of these paths, to compare with attributes of any object."""
        return frozenset(part for path in self.listed for part in path.split("."))

    def unlisted(self) -> list[Use]:
        """Return the uses of private names that the table does not have."""
        own = _names_of_ours(self.trees.values())
        return [
            use
            for path, tree in self.trees.items()
            for use in self._uses(path, tree, own)
            if not self._has(use.name)
        ]

    def unused(self) -> list[str]:
        """Return the names in the table that are not in the source."""
        words = {
            word
            for path in (*self.trees, *self.data)
            for word in re.findall(r"\w+", path.read_text("utf-8"))
        }
        tables = (
            self.table.at_registration,
            self.table.when_used,
            self.table.on_objects,
            self.table.optional,
        )
        return [
            f"{o}.{n}"
            for table in tables
            for o, names in table.items()
            for n in names
            if n not in words
        ]

    def _has(self, name: str) -> bool:
        return name in self.listed if "." in name else name in self.last_names

    def _uses(self, path: Path, tree: ast.Module, own: frozenset[str]) -> Iterator[Use]:
        aliases = dict(self._imports(tree))
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Import):
                yield from (
                    Use(path.name, line, each.name)
                    for each in node.names
                    if self._private(each.name)
                )
            elif isinstance(node, ast.ImportFrom):
                yield from (
                    Use(path.name, line, full)
                    for _, full in self._imported(node)
                    if self._private(full)
                )
            elif isinstance(node, ast.Attribute) and id(node) not in inner:
                full = self._path(node, aliases)
                if full is not None:
                    if self._private(full):
                        yield Use(path.name, line, self._as_listed(full))
                else:
                    yield from (Use(path.name, line, name) for name in _privates(node, own))
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and _PATH.fullmatch(node.value)
            ):
                last = node.value.rpartition(".")[2]
                if _is_private(last, own) and not last.startswith("_unamp"):
                    yield Use(path.name, line, last)

    def _as_listed(self, full: str) -> str:
        """Return a path up to the first part that the table names."""
        parts = full.split(".")
        heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        for head in heads:
            if head in self.listed and (head == full or head in self._names()):
                return head
        return full

    def _names(self) -> frozenset[str]:
        tables = (
            self.table.at_registration,
            self.table.when_used,
            self.table.on_objects,
            self.table.optional,
        )
        return frozenset(
            f"{o.replace('()', '')}.{n}"
            for table in tables
            for o, names in table.items()
            for n in names
        )

    def _private(self, path: str) -> bool:
        if path.partition(".")[0] not in self.family:
            return False
        if any(f"{path}.".startswith(f"{module}.") for module in self.table.private):
            return True
        return any(
            _PRIVATE.fullmatch(part) and not part.endswith("__") for part in path.split(".")[1:]
        )

    def _imports(self, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._imported(node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        """Yield the names that an import binds, each with its path in the framework."""
        if isinstance(node, ast.ImportFrom):
            if node.module and node.module.partition(".")[0] in self.family:
                yield from (
                    (each.asname or each.name, f"{node.module}.{each.name}") for each in node.names
                )
            return
        for each in node.names:
            root = each.name.partition(".")[0]
            if root in self.family:
                yield (each.asname, each.name) if each.asname else (root, root)

    def _path(self, node: ast.Attribute, aliases: dict[str, str]) -> str | None:
        """Return the path in the framework of a chain of attributes.

        None where the chain begins with something else.
        """
        parts: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if not isinstance(value, ast.Name) or value.id not in aliases:
            return None
        return ".".join([aliases[value.id], *reversed(parts)])


def _privates(node: ast.expr, own: frozenset[str]) -> Iterator[str]:
    """Yield the private names in a chain of attributes that are not the adapter's own."""
    while isinstance(node, ast.Attribute):
        if (
            not _is_self(node.value)
            and _is_private(node.attr, own)
            and not node.attr.startswith("_unamp")
        ):
            yield node.attr
        node = node.value


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_private(name: str, own: frozenset[str]) -> bool:
    return bool(_PRIVATE.fullmatch(name)) and not name.endswith("__") and name not in own | _PYTHONS


def _names_of_ours(trees: object) -> frozenset[str]:
    """Return the names that the trees define themselves: functions, classes, variables, attributes.

    Attributes are those of `self`.
    """
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_self(node.value)
        ):
            found.add(node.attr)
    return frozenset(found)
