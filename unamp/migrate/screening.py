"""Tell quickly, without libcst, which files need a closer look.

Words are checked first, then imports, attributes and strings. A file that passes may have no
finding. A file that does not pass has none.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache

from unamp.migrate.exports import Exports, dotted
from unamp.migrate.settings import configuration_words, dtype_words, setting_words
from unamp.migrate.spellings import table, watch

#: Functions that take a name as a string.
DYNAMIC = ("getattr", "hasattr", "setattr", "delattr")

#: Last parts of names that are too common to search for.
_COMMON = frozenset(
    {"Model", "decorate", "init", "initialize", "load_state_dict", "optimize", "state_dict"}
)


def mentions(content: bytes) -> bool:
    """Return whether a file's bytes have a word of any spelling."""
    return _has_words(content.decode("latin-1"))


def may_have_spellings(text: str, exports: Exports) -> bool:
    """Return whether a closer look at a text may have findings."""
    if not _has_words(text):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # libcst then reports the error
    return any(_tells(tree, exports))


def names_a_path(text: str) -> str | None:
    """Return the dotted name of mixed precision in a text, or None."""
    found = _paths().search(text) if "." in text and _roots().search(text) else None
    return None if found is None else found[0]


@cache
def _paths() -> re.Pattern[str]:
    names = sorted((*table().rows, *table().modules), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})\b")


@cache
def leaves() -> frozenset[str]:
    """Return the last parts of all names, except the ones that are too common."""
    return (
        frozenset(name.rpartition(".")[2] for name in (*table().rows, *table().modules)) - _COMMON
    )


def _has_words(text: str) -> bool:
    # A name whose last part is too common has a module in front, and the module's last part counts.
    return _words().search(text) is not None


@cache
def _words() -> re.Pattern[str]:
    seen = watch()
    words = leaves() | {
        *seen.strings,
        *seen.keywords,
        *seen.attributes,
        *seen.casts,
        *seen.dtypes,
        seen.cell,
        "unamp",
    }
    words |= setting_words() | configuration_words()
    return re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, words)))})\b")


@cache
def _roots() -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(sorted(table().roots))}|unamp)\b")


def _tells(tree: ast.Module, exports: Exports) -> Iterator[bool]:
    """Yield, for each node that may be a spelling or a place to look at, whether it is one."""
    bound: dict[str, set[str]] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        for name, imported in _imported(node, exports):
            bound.setdefault(name, set()).add(imported)
            yield _is_known(imported) or imported.partition(".")[0] == "unamp"
    roots = {name.partition(".")[0] for names in bound.values() for name in names}
    has_framework = any(map(table().framework_of, roots))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield any(
                _is_known(each) for name in _dotted(node, bound) for each in exports.resolve(name)
            )
            yield (
                "paddle" in roots
                and isinstance(node.ctx, ast.Store)
                and node.attr in watch().attributes
            )
            yield has_framework and node.attr in {*watch().casts, watch().cell}
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        ):
            yield node.value in watch().strings or names_a_path(node.value) is not None
        elif isinstance(node, ast.Call):
            yield any(keyword.arg in watch().keywords for keyword in node.keywords)
            yield _is_dynamic(node)
            takes = isinstance(node.func, ast.Attribute) and node.func.attr in watch().takers
            yield (
                has_framework
                and takes
                and any(map(_is_low_dtype, node.args + [each.value for each in node.keywords]))
            )
        for name, value in _named(node):
            yield _is_switch(name, value)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node gives values to, each with its value; see `Nodes.named`."""
    match node:
        case ast.keyword(arg=str(name), value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
            yield name, value
        case ast.Dict(keys=keys, values=values):
            yield from (
                (key.value, value)
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )
        case ast.arguments(
            args=args, posonlyargs=first, defaults=defaults, kwonlyargs=later, kw_defaults=others
        ):
            given = [*first, *args]
            pairs = [
                *zip(given[len(given) - len(defaults) :], defaults, strict=True),
                *zip(later, others, strict=True),
            ]
            yield from ((argument.arg, value) for argument, value in pairs if value is not None)


def _imported(node: ast.AST, exports: Exports) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with the name that it stands for."""
    for bound, full in exports.imported(node):
        module, _, real = full.rpartition(".")
        if isinstance(node, ast.Import):
            yield bound, full
            continue
        if real == "*":
            yield bound, module
        elif not table().framework_of(full) and real in table().usual:
            yield bound, table().usual[real]
        yield from ((bound, name) for name in exports.resolve(full))


def _dotted(node: ast.Attribute, bound: dict[str, set[str]]) -> list[str]:
    root, _, rest = dotted(node).partition(".")
    return [f"{imported}.{rest}" for imported in bound.get(root, ())]


def _is_known(name: str) -> bool:
    return name in table().rows or name in table().modules


def _is_dynamic(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Name) or node.func.id not in DYNAMIC:
        return False
    return any(isinstance(arg, ast.Constant) and arg.value in leaves() for arg in node.args)


def _is_low_dtype(node: ast.expr) -> bool:
    name = (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.value
        if isinstance(node, ast.Constant)
        else None
    )
    return isinstance(name, str) and name.rpartition(".")[2] in watch().dtypes


def _is_switch(name: str, value: ast.expr) -> bool:
    """Return whether a setting with a value may be reported; imports are checked later."""
    if name in dtype_words():
        return _is_low_dtype(value)
    return name in setting_words() and not (
        isinstance(value, ast.Constant) and value.value in (None, False)
    )
