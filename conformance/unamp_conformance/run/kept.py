"""Results of finished items, kept on disk while a run is under way.

An interrupted run goes on from them. A file is used again only where nothing has changed that
results depend on; see `fingerprint`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import unamp
from unamp.adapter.machine import variables
from unamp.adapter.registry import installed
from unamp_conformance.reading import results_from
from unamp_conformance.results import Result, sayable

__all__ = ["Kept", "fingerprint"]


def fingerprint(framework: str, version: str, device: str, plan: Mapping[str, Any]) -> str:
    """Return the key that tells this run from every other.

    It is a hash of framework, device, plan, versions and the code.

    Args:
        framework, version, device: what is under test.
        plan: what is run: the selection and the items.
    """
    parts = {
        "under test": (framework, version, device),
        "versions": (
            unamp.__version__,
            platform.python_version(),
            platform.machine(),
            np.__version__,
        ),
        "settings": [
            *sorted(item for item in os.environ.items() if item[0].startswith("UNAMP_")),
            *variables().items(),
        ],
        "code": [_digest(package) for package in _packages(framework)],
        "plan": plan,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _packages(framework: str) -> list[str]:
    """Return the packages that are run: the core, the suite, and an installed adapter."""
    point = installed().get(framework)
    return ["unamp", "unamp_conformance", *([point.module.partition(".")[0]] if point else [])]


def _digest(package: str) -> str:
    """Return a hash of all files of a package, data and compiled parts too."""
    spec = find_spec(package)
    if spec is None:
        return "absent"
    places = [Path(folder) for folder in spec.submodule_search_locations or ()] or [
        Path(spec.origin or "")
    ]
    files = [
        file for place in places for file in (place.rglob("*") if place.is_dir() else (place,))
    ]
    found = hashlib.sha256()
    for file in sorted(files):
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(f"{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()


class Kept:
    """The file of one framework and device.

    Args:
        folder: where files are kept.
        framework, device: the framework and the device of the results.
    """

    def __init__(self, folder: Path, framework: str, device: str) -> None:
        self._path = folder / f"{re.sub('[^A-Za-z0-9.]', '_', framework)}-{device}.jsonl"

    def start(self, key: str, *, resume: bool) -> dict[int, list[Result]]:
        """Begin to keep results.

        Args:
            key: the run's fingerprint.
            resume: use the results that are there, if they are of the same run. Otherwise they are
                thrown away.

        Returns:
            The results that are there already, by item.
        """
        found = self._read(key) if resume else {}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"key": key}),
            *(_line(item, results) for item, results in found.items()),
        ]
        self._path.write_text("\n".join(lines) + "\n", "utf-8")
        return found

    def add(self, item: int, results: Sequence[Result]) -> None:
        """Keep the results of an item that is finished."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(item, results) + "\n")

    def _read(self, key: str) -> dict[int, list[Result]]:
        try:
            first, *lines = self._path.read_text("utf-8").splitlines()
            if json.loads(first) != {"key": key}:
                return {}
        except (OSError, ValueError):
            return {}
        found = {}
        for line in lines:
            try:
                kept = json.loads(line)
                found[int(kept["item"])] = list(results_from(kept["results"]))
            except (ValueError, TypeError, KeyError):
                break  # cut off while it was written: that item is done again, and what follows it
        return found


def _line(item: int, results: Sequence[Result]) -> str:
    return json.dumps({"item": item, "results": [sayable(result) for result in results]})
