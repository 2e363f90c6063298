"""Presets: the base lists that a policy starts from, one data file each under `data/presets`.

A framework's lists change from version to version: `torch-cuda@2.11` has those of PyTorch 2.11,
which are kept as differences under `data/presets/versions`. A name alone is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from unamp._data import load_table, made
from unamp.dtypes import LOW_DTYPES
from unamp.errors import shortened, unknown
from unamp.typing import PresetName

#: The names of presets, in the order in which they are shown; `preset_versions` has the versions.
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
        name, title: the name, and a line about the preset.
        framework, version, source: the origin of the lists, with the public pages that state them.
        allow: the operations that run in the low dtype.
        deny: the operations that run in float32. `deny_o2` replaces it at level O2 where that list
            is shorter.
        promote: the operations listed as running in the widest of their inputs' dtypes.
        infer, clear: TensorFlow's lists of operations that run low where an input is low.
        by_dtype: the lists that differ for a low dtype: for each dtype, those lists by their names.
        banned: the operations that raise, each with its advice.
        implied: entries of `allow` and `deny` that the official lists do not name, each with the
            listed operations that the framework computes it with.
        unnamed: words on the lists of a version that the vocabulary has no operation for.
        delegates: for ``native`` alone, the preset that each framework follows on each device.
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
    unnamed: frozenset[str] = frozenset()
    delegates: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def listed(self, name: str, dtype: str) -> frozenset[str]:
        """Return the list ``"allow"``, ``"deny"``, ``"infer"`` or ``"clear"`` for a low dtype."""
        own = self.by_dtype.get(dtype, {})
        return own[name] if name in own else getattr(self, name)

    def denied(self, level: str, dtype: str) -> frozenset[str]:
        """Return the deny list for a level and a low dtype."""
        return (
            self.deny_o2
            if level == "O2" and self.deny_o2 is not None
            else self.listed("deny", dtype)
        )


_LISTS = ("allow", "deny", "promote", "infer", "clear")

#: The keys of a version's data that are no differences of lists.
_TOLD = {"version", "source", "unnamed"}

#: The presets whose lists differ between versions of their framework.
_VERSIONED = ("torch-cuda", "torch-cpu", "torch-mps", "paddle", "mindspore", "tensorflow")


def without_version(name: str) -> PresetName:
    """Return the name of a preset alone: ``"torch-cuda"`` for ``"torch-cuda@2.11"``."""
    return cast("PresetName", name.partition("@")[0])


@cache
def preset_versions(name: str) -> tuple[str, ...]:
    """Return the versions whose lists a preset has (``"2.11"``), the oldest first.

    There are none for a preset without versions.

    Raises:
        ValueError: for an unknown preset.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    return tuple(_differences(name)) if name in _VERSIONED else ()


@cache
def preset_names() -> tuple[PresetName, ...]:
    """Return every valid name of a preset: those of `PRESETS`, and each with its versions."""
    versioned = (f"{name}@{version}" for name in PRESETS for version in preset_versions(name))
    return (*PRESETS, *(cast("PresetName", name) for name in versioned))


def with_version(name: PresetName) -> PresetName:
    """Return the name of a preset with its newest version, so that it keeps today's lists.

    Raises:
        ValueError: for a preset whose lists change with unamp, or with the framework installed.
    """
    if "@" in name or name in ("apex", "none"):  # which do not change any more
        return name
    if versions := preset_versions(name):
        return cast("PresetName", f"{name}@{versions[-1]}")
    held = [name for name in PRESETS if preset_versions(name)]
    raise ValueError(
        f"preset {name!r} has no versions; "
        f"those whose lists can be held: {', '.join(held)}, apex, none"
    )


def as_of(name: str, version: str) -> PresetName:
    """Return the name of a preset with the lists of a framework's version.

    The name has no version where those lists are the newest.

    Args:
        name: the preset, without a version.
        version: the framework's own text: ``"2.11.0+cu130"``. Where no lists are known for it, the
            newest are taken.
    """
    told = ".".join(version.split(".")[:2])
    differs = told in preset_versions(name) and not _differences(name)[told].keys() <= _TOLD
    return cast("PresetName", f"{name}@{told}" if differs else name)


def check_preset(name: object) -> None:
    """Raise an error where a name is no preset's.

    Raises:
        TypeError: for a value that is no string.
        ValueError: for an unknown name or version; the message lists the valid ones.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"preset must be a string, not {type(name).__name__}; valid: {', '.join(PRESETS)}"
        )
    bare, at, version = name.partition("@")
    if bare not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    if at and version not in (versions := preset_versions(bare)):
        if not versions:
            raise ValueError(
                f"preset {bare!r} has no versions; write it without {shortened(at + version)}"
            )
        raise ValueError(unknown(f"version of preset {bare!r}", version, versions))


@cache
def preset(name: str) -> Preset:
    """Return the preset of that name, or of that name and version.

    Raises:
        ValueError: for an unknown name or version; the message lists the valid ones.
    """
    check_preset(name)
    bare, at, version = name.partition("@")
    data = load_table(f"presets/{bare}.toml")
    if at:
        data = _changed(data, _differences(bare)[version])
    by_dtype = {
        dtype: {key: data[named] for key in _LISTS if (named := f"{key}_{dtype}") in data}
        for dtype in LOW_DTYPES
    }
    banned = {op: data.get("advice", {}).get(op, "") for op in data.get("banned", ())}
    own = {key: value for key, value in data.items() if key in Preset._fields}
    return made(Preset, {**own, "name": name, "by_dtype": by_dtype, "banned": banned})


@cache
def _differences(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the differences of each version's lists from the data of a preset."""
    return {
        key: value
        for key, value in load_table(f"presets/versions/{name}.toml").items()
        if isinstance(value, dict)
    }


def _changed(data: Mapping[str, Any], difference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a preset with the lists of another version."""
    changed = {**data, **{key: difference[key] for key in _TOLD & difference.keys()}}
    for key, entries in difference.items():
        named, _, how = key.rpartition("_")
        if how == "with":
            changed[named] = [*changed.get(named, ()), *entries]
        elif how == "without":
            changed[named] = [op for op in changed[named] if op not in entries]
    return changed
