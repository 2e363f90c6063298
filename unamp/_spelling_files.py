"""Spellings that an adapter's package brings along: found without importing it, and read strictly.

The file is ``data/spellings.toml`` in the package that the entry point of the group
``unamp.adapters`` names. It is read before the framework is imported, so that
``Policy(deny="toy.add")`` and ``unamp ops toy.add`` know the framework's words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping

from unamp.errors import AdapterError, nearest

_PLACE = "data/spellings.toml"
_KEYS = {"framework", "version", "source", "spellings"}


def read_spellings(
    framework: str, package: str, operations: Collection[str]
) -> Mapping[str, tuple[str, ...]] | None:
    """Return the spellings of each operation in a package's file; None where it brings none.

    Args:
        framework: the framework's import name.
        package: the name of the package, which is not imported.
        operations: the names of the operations that can be spelled.

    Raises:
        AdapterError: for a bad file; the message names the file, the line, and what is wrong.
    """
    found = _text(package)
    if found is None:
        return None
    path, text = found

    def wrong(what: str, *after: str) -> AdapterError:
        line = _line(text, *after)
        return AdapterError(f"{path}{f', line {line}' if line else ''}: {what}")

    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(str(error)) from error
    if unknown := data.keys() - _KEYS:
        raise wrong(
            f"unknown key {min(unknown)!r}; valid: {', '.join(sorted(_KEYS))}", min(unknown)
        )
    for key in ("framework", "version", "source"):
        if not isinstance(data.get(key), str):
            raise wrong(f"{key} must be a string", key)
    if data["framework"] != framework:
        raise wrong(
            f"it is for {data['framework']!r}, and the adapter is {framework!r}'s", "framework"
        )
    table = data.get("spellings")
    if not isinstance(table, dict):
        raise wrong("there is no table [spellings]")
    taken: dict[str, str] = {}
    for op, words in table.items():
        if op not in operations:
            raise wrong(
                f"unknown operation {op!r}; "
                f"{nearest(op, operations, '`unamp ops` lists all of them')}",
                op,
            )
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise wrong(f"{op} must be a list of spellings, each a string", op)
        for word in words:
            if word in taken:
                raise wrong(
                    f"{word!r} is spelled for {taken[word]!r} already; "
                    "a spelling is one operation's",
                    op,
                    word,
                )
            taken[word] = op
    return {op: tuple(words) for op, words in table.items()}


def _text(package: str) -> tuple[str, str] | None:
    """Return the path of a package's file, and its content."""
    import os
    from importlib.util import find_spec

    try:
        # the spec of a package inside another one would import the outer one
        spec = find_spec(package.partition(".")[0])
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(folder, *_PLACE.split("/"))
        try:
            # a loader reads files inside an archive, too
            read = spec.loader.get_data  # type: ignore[union-attr]
            return path, read(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise AdapterError(f"{path}: not UTF-8: {error}") from error
        except (OSError, AttributeError):
            continue
    return None


def _line(text: str, *after: str) -> int | None:
    """Return the number of the first line by which some words have come up, in their order."""
    if not after:
        return None
    wanted = list(after)
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        while wanted and wanted[0] in code:
            wanted.pop(0)
        if not wanted:
            return number
    return None
