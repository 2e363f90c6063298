"""The text of a `precision.toml`: a policy, rules for layers, and why.

docs/precision.md describes the format. This module reads it into plain values, strictly: whatever
is not known is refused, and nothing is executed or looked up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unamp import _strict_json as strict
from unamp.errors import shortened

FORMAT, VERSION = "unamp precision", 1

_LISTS = ("allow", "deny")
_FLAGS = ("enabled", "promote", "widen_results", "cache")
_POLICY = ("level", "dtype", *_LISTS, "preset", *_FLAGS, "reason")
_LAYER = ("pattern", "policy", "result", "reason")


class Contents(NamedTuple):
    """The contents of a file.

    Attributes:
        policy: the arguments of the policy; None where the file has none.
        layers: for each rule its pattern, policy (arguments, or a word), result and reason.
        reason: why the policy is as it is.
        reasons: why an operation is on a list, by the entry.
        lists: for each preset, the version of its lists with which the file was made.
    """

    policy: dict[str, Any] | None = None
    layers: Sequence[Mapping[str, Any]] = ()
    reason: str = ""
    reasons: Mapping[str, str] = {}
    lists: Mapping[str, str] = {}


def load(text: str) -> Contents:
    """Return the content of a file.

    Raises:
        ValueError: where the text is no such file; the message says where and why.
    """
    return strict.toml(text, _contents, "precision file")


def _contents(data: dict[str, Any]) -> Contents:
    found = strict.fields(
        "the file", data, ("format", "version", "lists", "policy", "layers"), ("format", "version")
    )
    if found["format"] != FORMAT:
        raise strict.BadJSON(f"format: must be {FORMAT!r}, not {str(found['format'])[:40]!r}")
    if strict.whole("version", found["version"]) != VERSION:
        raise strict.BadJSON(
            f"version: {found['version']} is not known; this unamp reads version {VERSION}"
        )
    reasons: dict[str, str] = {}
    policy = None if "policy" not in found else _policy("policy", found["policy"], reasons)
    reason = "" if policy is None else policy.pop("reason", "")
    layers = strict.each(_layer)("layers", found.get("layers", []))
    return Contents(policy, layers, reason, reasons, _lists(found.get("lists", {})))


def _lists(value: object) -> dict[str, str]:
    found = strict.expect("lists", value, dict, "a table of presets and versions")
    return {
        name: strict.plain_text(f"lists, {shortened(name)}", version)
        for name, version in found.items()
    }


def _policy(where: str, value: object, reasons: dict[str, str]) -> dict[str, Any]:
    table = dict(strict.fields(where, value, _POLICY, ()))
    for name, item in table.items():
        if name in _LISTS:
            table[name] = _entries(f"{where}, {name}", item, reasons)
        elif name in _FLAGS:
            strict.expect(f"{where}, {name}", item, bool, "true or false")
        else:
            strict.plain_text(f"{where}, {name}", item)
    return table


def _entries(where: str, value: object, reasons: dict[str, str]) -> list[str]:
    found = []
    for number, item in enumerate(strict.expect(where, value, list, "a list"), 1):
        place = f"{where} {number}"
        if isinstance(item, dict):
            entry = strict.fields(place, item, ("op", "reason"), ("op", "reason"))
            op = strict.plain_text(place, entry["op"])
            reasons[op] = strict.plain_text(f"{place}, reason", entry["reason"])
        else:
            op = strict.plain_text(place, item)
        found.append(op)
    return found


def _layer(where: str, value: object) -> dict[str, object]:
    table = strict.fields(where, value, _LAYER, ("pattern", "policy"))
    for name in ("pattern", "result", "reason"):
        if name in table:
            strict.plain_text(f"{where}, {name}", table[name])
    policy = table["policy"]
    if isinstance(policy, dict):
        inner: dict[str, str] = {}
        policy = _policy(f"{where}, policy", policy, inner)
        if inner or policy.pop("reason", ""):
            raise strict.BadJSON(
                f"{where}: the reason for a layer's rule is the rule's own: "
                "write it beside the pattern"
            )
    else:
        strict.plain_text(f"{where}, policy", policy)
    return {"result": None, "reason": "", **table, "policy": policy}


def dump(contents: Contents) -> str:
    """Return the text of a file."""
    lines = [f"format = {_value(FORMAT)}", f"version = {VERSION}"]
    if contents.lists:
        lines.append(f"lists = {_value(dict(contents.lists))}")
    if contents.policy is not None:
        lines += ["", "[policy]", *_table(policy_table(contents))]
    for rule in contents.layers:
        lines += ["", "[[layers]]", *_table(layer_table(rule))]
    return "\n".join(lines) + "\n"


def policy_table(contents: Contents) -> dict[str, object]:
    """Return the table of a policy, as it is written."""
    told, reasons = dict(contents.policy or {}), contents.reasons
    for name in _LISTS:
        if name in told:
            told[name] = [
                {"op": op, "reason": reasons[op]} if op in reasons else op for op in told[name]
            ]
    return {**told, **({"reason": contents.reason} if contents.reason else {})}


def layer_table(rule: Mapping[str, object]) -> dict[str, object]:
    """Return the table of a rule for layers, as it is written."""
    return {name: value for name, value in rule.items() if value not in (None, "")}


def _table(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in values.items()]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value]
        within = ", ".join(items)
        return (
            f"[{within}]"
            if len(within) < 100
            else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        )
    return json.dumps(value, ensure_ascii=False)
