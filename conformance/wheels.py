"""Say which frameworks offer no wheel for the Python that runs this, so that what does without them says so.

``pyproject.toml`` knows: its extra ``frameworks`` leaves them out there.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def without_wheels(python: Sequence[int] = sys.version_info) -> frozenset[str]:
    """The frameworks that offer no wheel for a Python."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = tomllib.loads((ROOT / "conformance/versions.toml").read_text("utf-8"))
    packages = {entry["package"]: framework for framework, entry in listed.items()}
    found = set()
    for requirement in extras["frameworks"]:
        package, first = re.fullmatch(r"([\w-]+)>=[\d.]+,<\d+(?:; python_version < '3\.(\d+)')?", requirement).groups()
        if first is not None and tuple(python[:2]) >= (3, int(first)):
            found.add(packages[package])
    return frozenset(found)


if __name__ == "__main__":
    for framework in sorted(without_wheels()):
        print(f"{framework} is left out: it offers no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}")
