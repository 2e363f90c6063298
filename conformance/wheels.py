"""The frameworks that offer no wheel for the running Python, so that tests and runs leave them out.

``pyproject.toml`` knows them: its extra ``frameworks`` excludes them for that Python.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def without_wheels(python: Sequence[int] = sys.version_info[:2]) -> frozenset[str]:
    """Return the frameworks that offer no wheel for a Python."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    listed = tomllib.loads((ROOT / "conformance/versions.toml").read_text("utf-8"))
    packages = {entry["package"]: framework for framework, entry in listed.items()}
    found = set()
    for requirement in extras["frameworks"]:
        package, first = first_without(requirement)
        if first is not None and tuple(python[:2]) >= first:
            found.add(packages[package])
    return frozenset(found)


def first_without(requirement: str) -> tuple[str, tuple[int, int] | None]:
    """Return the package of a requirement and the first Python that it excludes, or None.

    Raises:
        ValueError: where the requirement is not written as those of the extra.
    """
    form = re.fullmatch(r"([\w-]+)>=[\d.]+,<\d+(?:; python_version < '3\.(\d+)')?", requirement)
    if form is None:
        raise ValueError(
            f"pyproject.toml, extra frameworks: cannot read {requirement!r}; "
            "write it as torch>=2.10,<3 or torch>=2.10,<3; python_version < '3.14'"
        )
    package, minor = form.groups()
    return package, None if minor is None else (3, int(minor))


if __name__ == "__main__":
    for framework in sorted(without_wheels()):
        print(
            f"{framework} is left out: it offers no wheel for Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}"
        )
