"""Changing the text of a `precision.toml` in place, so that what a person wrote beside the values stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit.items import AoT

from unamp._precision_toml import Contents, layer_table, policy_table

__all__ = ["edited"]


#: What a file may leave out, and `Policy.stated` does not.
_USUAL = {"level": "O1", "dtype": "float16"}


def edited(text: str, contents: Contents) -> str:
    """Return the text with other contents; comments, order and layout of what stays equal are kept."""
    document = tomlkit.parse(text)
    _set_lists(document, contents.lists)
    if "policy" not in document:
        document["policy"] = tomlkit.table()
    _update(document["policy"], policy_table(contents))
    wanted = {str(rule["pattern"]): layer_table(rule) for rule in contents.layers}
    there: Any = document.get("layers", None)
    kept = [table for table in there or () if str(table["pattern"]) in wanted]
    if [str(table["pattern"]) for table in kept] == list(wanted)[: len(kept)] and len(kept) == len(there or ()):
        for table in kept:
            _update(table, wanted.pop(str(table["pattern"])))
        rules = there
    else:  # removed, or in another order: each keeps its comments, in its new place
        by_pattern = {str(table["pattern"]): table for table in kept}
        rules = tomlkit.aot()
        for pattern in list(wanted):
            if pattern in by_pattern:
                _update(by_pattern[pattern], wanted[pattern])
                rules.append(by_pattern[pattern])
            else:
                rules.append(_made(wanted[pattern]))
        wanted = {}
    if wanted and not isinstance(rules, AoT):
        rules = tomlkit.aot()
    for table in wanted.values():
        rules.append(_made(table))
    if rules is not None and len(rules):
        document["layers"] = rules
    elif "layers" in document:
        del document["layers"]
    return tomlkit.dumps(document)


def _set_lists(document: Any, lists: Mapping[str, str]) -> None:
    if not lists:
        document.pop("lists", None)
    elif "lists" in document:
        _update_keys(document["lists"], lists)
    else:
        made = tomlkit.inline_table()
        made.update(lists)
        document["lists"] = made


def _update_keys(table: Any, values: Mapping[str, str]) -> None:
    for name in [name for name in table if name not in values]:
        del table[name]
    for name, value in values.items():
        table[name] = value


def _made(values: Mapping[str, Any]) -> Any:
    table = tomlkit.table()
    _update(table, values)
    return table


def _update(table: Any, values: Mapping[str, Any]) -> None:
    for name in [name for name in table if name not in values]:
        del table[name]
    # What stands behind the last value (a comment about the next table, say) stays behind it.
    body, behind = table.value.body, []
    while body and body[-1][0] is None:
        behind.append(body.pop()[1])
    _set(table, values)
    for item in reversed(behind):
        table.value.append(None, item)


def _set(table: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if (table[name].unwrap() if name in table else _USUAL.get(name)) == value:
            continue
        if isinstance(value, dict):
            made: Any = tomlkit.inline_table()
            made.update(value)
            value = made
        elif isinstance(value, list) and name in table:
            value = _list(table[name], value)
        table[name] = value


def _list(there: Any, wanted: list[Any]) -> Any:
    """Return a list with other entries, in which those that stay have their comments."""
    for number in reversed(range(len(there))):
        if there[number].unwrap() not in wanted:
            del there[number]
    for entry in wanted:
        if entry not in there.unwrap():
            there.append(entry)
    return there
