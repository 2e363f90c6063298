"""Write the lists of the frameworks' other versions, as differences from the presets.

They go to ``unamp/data/presets/versions``.

    python conformance/preset_versions.py FOLDER...

Each folder has packages of frameworks (``pip install --target FOLDER --no-deps torch==2.11.0``).
They are read, not imported: their requirements and a GPU are not needed. Versions that are in none
of the folders keep their entries.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from official_lists import (
    mindspore_lists,
    paddle_lists,
    spellings,
    tensorflow_lists,
    torch_kernels_by_symbol,
)

from unamp._data import load_table
from unamp.adapter.versions import major_minor

VERSIONS = Path(__file__).parents[1] / "unamp/data/presets/versions"

Lists = Mapping[str, set[str]]


class Source(NamedTuple):
    """The package that a framework's lists are read from, and the address of their source."""

    framework: str
    source: str
    read: Callable[[Path], Mapping[str, Lists]]


def _paddle(package: Path) -> dict[str, Lists]:
    lists = paddle_lists(package)
    denied = lists["FP16_BLACK_LIST"] | lists["EXTRA_BLACK_LIST"]
    allowed = {"allow": lists["FP16_WHITE_LIST"], "allow_bfloat16": lists["BF16_WHITE_LIST"]}
    return {"paddle": {**allowed, "deny": denied, "deny_o2": lists["EXTRA_BLACK_LIST"]}}


def _mindspore(package: Path) -> dict[str, Lists]:
    lists = mindspore_lists(package)
    return {"mindspore": {"allow": lists["AMP_WHITE_LIST"], "deny_o2": lists["AMP_BLACK_LIST"]}}


def _tensorflow(package: Path) -> dict[str, Lists]:
    lists = tensorflow_lists(package)
    low = {f"{key}_bfloat16": names for key, names in lists["onednn"].items()}
    return {"tensorflow": {**lists["cuda"], **low}}


#: The sources, by the name of the distribution.
SOURCES = {
    "torch": Source(
        "torch",
        "ATen/autocast_mode.h and ATen/autocast_mode.cpp (torch {})",
        torch_kernels_by_symbol,
    ),
    "paddlepaddle": Source("paddle", "paddle/amp/amp_lists.py (paddlepaddle {})", _paddle),
    "mindspore": Source("mindspore", "mindspore/train/amp.py (mindspore {})", _mindspore),
    "tensorflow_cpu": Source(
        "tensorflow",
        "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h (tensorflow {})",
        _tensorflow,
    ),
}


def difference(preset: str, framework: str, lists: Lists) -> dict[str, list[str]]:
    """Return the entries that lists have beyond a preset's, or lack, and the unnamed words.

    An unnamed word has no operation in the vocabulary.

    Raises:
        ValueError: where an entry that differs is the basis of one that the preset implies: a
            person has to decide about that.
    """
    data, words = load_table(f"presets/{preset}.toml"), spellings(framework)
    implied = data.get("implied", {})
    found: dict[str, list[str]] = {}
    for key, official in lists.items():
        theirs = {words[word] for word in official if word in words}
        ours = set(data.get(key, ())) - implied.keys()
        # An entry that a preset implies may be listed by name in another version: both have it, and
        # there is no difference.
        for suffix, names in (("with", theirs - ours - implied.keys()), ("without", ours - theirs)):
            if names:
                found[f"{key}_{suffix}"] = sorted(names)
    differing = {name for names in found.values() for name in names}
    for op, basis in implied.items():
        if differing & set(re.findall(r"\w+", basis)):
            raise ValueError(
                f"preset {preset}: {op!r} is implied by {basis!r}, which differs: "
                f"{sorted(differing)}"
            )
    if unnamed := sorted(
        {word for official in lists.values() for word in official if word not in words}
    ):
        found["unnamed"] = unnamed
    return found


def read_folder(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the differences in a folder's packages, by preset and minor version."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for distribution in metadata.distributions(path=[str(folder)]):
        name = distribution.metadata["Name"].replace("-", "_")
        if (source := SOURCES.get(name)) is None:
            continue
        version = distribution.version.partition("+")[0]
        minor = ".".join(map(str, major_minor(version)))
        for preset, lists in source.read(folder / source.framework).items():
            entry = {"version": version, "source": [source.source.format(version)]}
            found.setdefault(preset, {})[minor] = entry | difference(
                preset, source.framework, lists
            )
    return found


def write(preset: str, versions: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the differences of a preset's versions, the oldest first."""
    lines = [
        (
            f"# How the lists of other versions differ from the preset {preset}; "
            "conformance/preset_versions.py writes this."
        ),
        "# `unnamed` are words on the lists that the vocabulary has no operation for.",
        "",
        "schema = 1",
        f'preset = "{preset}"',
    ]
    for minor, entry in sorted(versions.items(), key=lambda item: major_minor(item[0])):
        lines += ["", f'["{minor}"]', *(f"{key} = {_value(value)}" for key, value in entry.items())]
    VERSIONS.mkdir(exist_ok=True)
    (VERSIONS / f"{preset}.toml").write_text("\n".join(lines) + "\n", "utf-8")


def _value(value: str | Sequence[str]) -> str:
    return f'"{value}"' if isinstance(value, str) else f"[{', '.join(map(_value, value))}]"


def written(preset: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a preset's versions in its file."""
    path = VERSIONS / f"{preset}.toml"
    data = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {key: value for key, value in data.items() if isinstance(value, dict)}


def main(folders: Sequence[str]) -> None:
    """Read each folder, and write the differences."""
    versions: dict[str, dict[str, dict[str, Any]]] = {}
    for folder in folders:
        for preset, found in read_folder(Path(folder)).items():
            versions.setdefault(preset, written(preset)).update(found)
    for preset, entries in versions.items():
        write(preset, entries)


if __name__ == "__main__":
    main(sys.argv[1:])
