"""Presets: the base lists that a policy starts from, one data file each under `data/presets`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from unamp._data import load_table
from unamp.dtypes import LOW_DTYPES
from unamp.errors import unknown
from unamp.typing import PresetName

__all__ = ["PRESETS", "Preset", "preset"]

#: Their names, in the order in which they are shown.
PRESETS: tuple[PresetName, ...] = (
    "unamp",
    "torch-cuda",
    "torch-cpu",
    "torch-mps",
    "paddle",
    "mindspore",
    "tensorflow",
    "apex",
    "none",
    "native",
)


class Preset(NamedTuple):
    """One set of base lists, in canonical names.

    Attributes:
        name, title: what it is called, and a line about it.
        framework, version, source: whose lists these are, and the public places that they were read from.
        allow: the operations that run in the low dtype.
        deny: the operations that run in float32. `deny_o2` replaces it at level O2 where that list is shorter.
        promote: the operations listed as running in the widest of their inputs' dtypes.
        infer, clear: TensorFlow's lists of operations that run low where an input is low.
        by_dtype: the lists that differ for a low dtype: for each dtype, those lists by their names.
        banned: the operations that raise, each with its advice.
        implied: entries of `allow` and `deny` that the official lists do not name, each with the listed operations that the
            framework computes it with.
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
    infer: frozenset[str] = frozenset()
    clear: frozenset[str] = frozenset()
    deny_o2: frozenset[str] | None = None
    by_dtype: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType({})
    banned: Mapping[str, str] = MappingProxyType({})
    implied: Mapping[str, str] = MappingProxyType({})
    delegates: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def listed(self, name: str, dtype: str) -> frozenset[str]:
        """Return one of the lists (``"allow"``, ``"deny"``, ``"infer"``, ``"clear"``) for a low dtype."""
        own = self.by_dtype.get(dtype, {})
        return own[name] if name in own else getattr(self, name)

    def denied(self, level: str, dtype: str) -> frozenset[str]:
        """Return the deny list for a level and a low dtype."""
        return self.deny_o2 if level == "O2" and self.deny_o2 is not None else self.listed("deny", dtype)


_LISTS = ("allow", "deny", "promote", "infer", "clear")


@cache
def preset(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        ValueError: for an unknown name; the message lists the valid ones.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    data = load_table(f"presets/{name}.toml")
    lists = {key: frozenset(data.get(key, ())) for key in _LISTS}
    return Preset(
        name=data["name"],
        title=data["title"],
        framework=data["framework"],
        version=data["version"],
        source=tuple(data["source"]),
        deny_o2=frozenset(data["deny_o2"]) if "deny_o2" in data else None,
        by_dtype={
            dtype: {key: frozenset(data[named]) for key in _LISTS if (named := f"{key}_{dtype}") in data}
            for dtype in LOW_DTYPES
        },
        banned={op: data.get("advice", {}).get(op, "") for op in data.get("banned", ())},
        implied=data.get("implied", {}),
        delegates=data.get("delegates", {}),
        **lists,
    )
