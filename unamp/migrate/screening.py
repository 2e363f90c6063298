"""Tell quickly, and without libcst, which files need a closer look: by words, then by imports, attributes and strings.

What it lets pass may hold nothing after all; what it holds back holds nothing that a closer look would find.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache

from unamp.migrate.spellings import table, watch

__all__ = ["DYNAMIC", "leaves", "may_have_spellings", "mentions", "names_a_path"]

#: Functions that take a name as a string.
DYNAMIC = ("getattr", "hasattr", "setattr", "delattr")

#: Names too common to tell anything by themselves.
_COMMON = frozenset({"Model", "decorate", "init", "initialize", "load_state_dict", "optimize", "state_dict"})


def mentions(content: bytes) -> bool:
    """Return whether a file's bytes have the words of a spelling."""
    return _has_words(content.decode("latin-1"))


def may_have_spellings(text: str) -> bool:
    """Return whether a closer look at a text can find anything."""
    if not _has_words(text):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # for libcst to say what is wrong with it
    return any(_tells(tree))


def names_a_path(text: str) -> str | None:
    """Return the name of mixed precision that a text holds, if any."""
    found = _paths().search(text) if "." in text and _roots().search(text) else None
    return None if found is None else found[0]


@cache
def _paths() -> re.Pattern[str]:
    names = sorted((*table().rows, *table().modules), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})\b")


@cache
def leaves() -> frozenset[str]:
    """Return the last parts of all names, but for those that are too common."""
    return frozenset(name.rpartition(".")[2] for name in (*table().rows, *table().modules)) - _COMMON


def _has_words(text: str) -> bool:
    # A name that is too common has its module in front, whose last part is a word.
    return _roots().search(text) is not None and _words().search(text) is not None


@cache
def _words() -> re.Pattern[str]:
    words = leaves() | {*watch().strings, *watch().keywords, *watch().attributes}
    return re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, words)))})\b")


@cache
def _roots() -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(sorted(table().roots))}|unamp)\b")


def _tells(tree: ast.Module) -> Iterator[bool]:
    """Return for each node that could be one whether it is a spelling, or a place to look at."""
    bound: dict[str, set[str]] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        for name, imported in _imported(node):
            bound.setdefault(name, set()).add(imported)
            yield _is_known(imported) or imported.partition(".")[0] == "unamp"
    has_paddle = any(name.partition(".")[0] == "paddle" for names in bound.values() for name in names)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield any(map(_is_known, _dotted(node, bound)))
            yield has_paddle and isinstance(node.ctx, ast.Store) and node.attr in watch().attributes
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value in watch().strings or names_a_path(node.value) is not None
        elif isinstance(node, ast.Call):
            yield any(keyword.arg in watch().keywords for keyword in node.keywords)
            yield _is_dynamic(node)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Return the names that an import binds, each with what it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        for alias in node.names:
            star = alias.name == "*"
            yield alias.asname or alias.name, node.module if star else f"{node.module}.{alias.name}"


def _dotted(node: ast.Attribute, bound: dict[str, set[str]]) -> list[str]:
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return []
    rest = ".".join(reversed(parts))
    return [f"{imported}.{rest}" for imported in bound.get(inner.id, ())]


def _is_known(name: str) -> bool:
    return name in table().rows or name in table().modules


def _is_dynamic(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Name) or node.func.id not in DYNAMIC:
        return False
    return any(isinstance(arg, ast.Constant) and arg.value in leaves() for arg in node.args)
