"""Changes to the text of a `precision.toml` that keep its comments and layout."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.items import AoT, Array, Table

from unamp._precision_toml import Contents, layer_table, policy_table

#: The defaults of arguments that a file may leave out, and that `Policy.stated` always returns.
_USUAL = {"level": "O1", "dtype": "float16"}


def edited(text: str, contents: Contents) -> str:
    """Return the text with other contents; unchanged parts keep comments, order and layout."""
    document = tomlkit.parse(text)
    _set_lists(document, contents.lists)
    if "policy" not in document:
        document["policy"] = tomlkit.table()
    _update(document["policy"], policy_table(contents))
    wanted = {str(rule["pattern"]): layer_table(rule) for rule in contents.layers}
    rules: Any = document.get("layers", ())
    # A list in one line is written anew: it has no place for tables.
    there = {str(table["pattern"]): table for table in rules} if isinstance(rules, AoT) else {}
    if not isinstance(rules, AoT) or list(there) != list(wanted)[: len(there)]:
        # rules were removed or have another order: a new list takes over the old tables
        rules = tomlkit.aot()
        document.pop("layers", None)
    for pattern, values in wanted.items():
        if pattern in there:
            _update(there[pattern], values)
        table = there.get(pattern) or _made(values)
        if not any(table is each for each in rules):
            rules.append(table)
    if len(rules):
        document["layers"] = rules
    else:
        document.pop("layers", None)
    return tomlkit.dumps(document)


def _set_lists(document: TOMLDocument, lists: Mapping[str, str]) -> None:
    if not lists:
        document.pop("lists", None)
    elif "lists" in document:
        _update_keys(document["lists"], lists)
    else:
        made = tomlkit.inline_table()
        made.update(lists)
        document["lists"] = made


def _update_keys(table: MutableMapping[str, object], values: Mapping[str, str]) -> None:
    for name in [name for name in table if name not in values]:
        del table[name]
    for name, value in values.items():
        table[name] = value


def _made(values: Mapping[str, object]) -> Table:
    table = tomlkit.table()
    _update(table, values)
    return table


def _update(table: Table, values: Mapping[str, object]) -> None:
    for name in [name for name in table if name not in values]:
        del table[name]
    # A comment behind the last value may be about the next table: it stays behind new values, too.
    body, behind = table.value.body, []
    while body and body[-1][0] is None:
        behind.append(body.pop()[1])
    _set(table, values)
    for item in reversed(behind):
        table.value.append(None, item)


def _set(table: Table, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if (table[name].unwrap() if name in table else _USUAL.get(name)) == value:
            continue
        if isinstance(value, dict):
            made = tomlkit.inline_table()
            made.update(value)
            value = made
        elif isinstance(value, list) and name in table:
            value = _list(table[name], value)
        table[name] = value


def _list(there: Array, wanted: list[object]) -> Array:
    """Return a list with the wanted entries; an entry that stays keeps its comment."""
    for number in reversed(range(len(there))):
        if there[number].unwrap() not in wanted:
            del there[number]
    for entry in wanted:
        if entry not in there.unwrap():
            there.append(entry)
    return there
