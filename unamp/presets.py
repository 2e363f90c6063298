"""Presets: the base lists that a policy starts from, one data file each under `data/presets`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from unamp._data import load_table

__all__ = ["PRESETS", "Preset", "preset"]

#: Their names, in the order in which they are shown.
PRESETS = ("unamp", "torch-cuda", "torch-cpu", "paddle", "mindspore", "tensorflow", "apex", "native")


class Preset(NamedTuple):
    """One set of base lists, in canonical names.

    Attributes:
        name, title: what it is called, and a line about it.
        framework, version, source: whose lists these are, and the public places that they were read from.
        allow: the operations that run in the low dtype. `allow_bfloat16` replaces it for bfloat16 where that list differs.
        deny: the operations that run in float32. `deny_o2` replaces it at level O2 where that list is shorter.
        promote: the operations listed as running in the widest of their inputs' dtypes.
        banned: the operations that raise, each with its advice.
        clear: the operations that are never cast (TensorFlow's clear list).
        delegates: for ``native`` alone, the preset that each framework itself follows on each device.
    """

    name: str
    title: str
    framework: str
    version: str
    source: tuple[str, ...]
    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    promote: frozenset[str] = frozenset()
    clear: frozenset[str] = frozenset()
    allow_bfloat16: frozenset[str] | None = None
    deny_o2: frozenset[str] | None = None
    banned: Mapping[str, str] = MappingProxyType({})
    delegates: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def allowed(self, dtype: str) -> frozenset[str]:
        """The allow list for a low dtype."""
        return self.allow_bfloat16 if dtype == "bfloat16" and self.allow_bfloat16 is not None else self.allow

    def denied(self, level: str) -> frozenset[str]:
        """The deny list for a level."""
        return self.deny_o2 if level == "O2" and self.deny_o2 is not None else self.deny


@cache
def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ValueError: for an unknown name; the message lists the valid ones.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; valid: {', '.join(PRESETS)}")
    data = load_table(f"presets/{name}.toml")
    lists = {key: frozenset(data.get(key, ())) for key in ("allow", "deny", "promote", "clear")}
    shorter = {key: frozenset(data[key]) for key in ("allow_bfloat16", "deny_o2") if key in data}
    return Preset(
        name=data["name"],
        title=data["title"],
        framework=data["framework"],
        version=data["version"],
        source=tuple(data["source"]),
        banned={op: data.get("advice", {}).get(op, "") for op in data.get("banned", ())},
        delegates=data.get("delegates", {}),
        **lists,
        **shorter,
    )
