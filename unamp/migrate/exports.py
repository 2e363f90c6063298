"""Follow names through a project's own modules, as in `from .backend import torch`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from unamp.migrate.spellings import table

#: The most modules that one name is followed through.
_MOST = 8

_Names = Mapping[str, frozenset[str]]


class Exports:
    """The names that a file imports from its own project's modules.

    Args:
        path: the file; without one, nothing is followed.
        known: the names that each module binds; shared by all files of a project.
    """

    def __init__(self, path: Path | None = None, known: dict[Path, _Names] | None = None) -> None:
        self._known = {} if known is None else known
        self._resolved: dict[tuple[str, int], frozenset[str]] = {}
        self._package: list[str] = []
        self._tops: list[Path] = []
        if path is None:
            return
        top = path.absolute().parent
        while (top / "__init__.py").is_file() and top != top.parent:
            self._package.insert(0, top.name)
            top = top.parent
        self._tops = [top, top.parent, top.parent / "src"]

    def absolute(self, level: int, name: str) -> str:
        """Return the absolute name of a relative import; `level` is its number of dots."""
        if self._package and table().framework_of(self._package[0]):
            return f".{name}"  # the file belongs to the framework itself
        package = self._package[: max(0, len(self._package) - level + 1)]
        return ".".join([*package, name])

    def imported(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the names that an import binds, each with the dotted name that it imports.

        Nodes that are no imports yield nothing.
        """
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}" if node.module else alias.name
                yield (
                    alias.asname or alias.name,
                    self.absolute(node.level, full) if node.level else full,
                )

    def resolve(self, name: str, most: int = _MOST) -> frozenset[str]:
        """Return the names that a dotted name may stand for.

        There are several where a module binds the name in several ways.
        """
        if (name, most) not in self._resolved:
            # kept, because modules that bind one name in several ways may lead to each other
            self._resolved[name, most] = self._followed(name, most)
        return self._resolved[name, most]

    def _followed(self, name: str, most: int) -> frozenset[str]:
        if self._tops and most and not table().framework_of(name):
            parts = name.split(".")
            for count in range(len(parts) - 1, 0, -1):
                if (path := self._path(parts[:count])) is not None:
                    bound = self._names(path).get(parts[count], ())
                    full = (".".join([each, *parts[count + 1 :]]) for each in bound)
                    return frozenset().union(
                        *(self.resolve(each, most - 1) for each in full)
                    ) or frozenset({name})
        return frozenset({name})

    def _path(self, parts: list[str]) -> Path | None:
        for top in self._tops:
            inner = top.joinpath(*parts)
            for path in (inner / "__init__.py", inner.with_name(f"{inner.name}.py")):
                try:
                    if path in self._known or path.is_file():
                        return path
                except (OSError, ValueError):
                    continue
        return None

    def _names(self, path: Path) -> _Names:
        if path not in self._known:
            self._known[path] = {}  # ends the recursion of modules that import each other
            self._known[path] = _bound(path, Exports(path, self._known))
        return self._known[path]


def _bound(path: Path, exports: Exports) -> _Names:
    """Return the names that a module binds by imports and by assignments of imported names.

    A module that cannot be read has none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    names: dict[str, set[str]] = {}
    for node in _statements(tree):
        for name, imported in exports.imported(node):
            names.setdefault(name, set()).add(imported)
        if isinstance(node, ast.Assign):
            root, _, rest = dotted(node.value).partition(".")
            for target in node.targets:
                if isinstance(target, ast.Name) and root != target.id:
                    bound = names.get(root, {""})
                    names.setdefault(target.id, set()).update(
                        f"{each}.{rest}" if rest else each for each in bound
                    )
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.setdefault(node.name, set()).add("")
    return {name: frozenset(each) for name, each in names.items() if each - {""}}


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(node)


def dotted(node: ast.expr) -> str:
    """Return a name with its attributes, joined by dots; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""
