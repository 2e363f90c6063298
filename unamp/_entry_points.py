"""The entry points by which adapters and commands of other packages are found.

A checkout that is not installed (``PYTHONPATH=.:adapters:conformance``) has no metadata: our own
entry points are then read from ``pyproject.toml``, which declares them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

_DISTRIBUTION = "unamp"


@cache
def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group.

    They come from installed distributions, and from this checkout where it is not installed. They
    are read once in a process, because a file of every installed distribution is opened for it.

    Args:
        group: e.g. ``"unamp.adapters"``.
    """
    from importlib import metadata  # slow to import, and nothing needs it before the first region

    found = tuple(metadata.entry_points(group=group))
    if any(point.dist is not None and point.dist.name == _DISTRIBUTION for point in found):
        return found
    return (*_declared(group), *found)


def _declared(group: str) -> list[metadata.EntryPoint]:
    import tomllib
    from importlib import metadata
    from pathlib import Path

    file = Path(__file__).parents[1] / "pyproject.toml"
    if not file.is_file():
        return []

    project = tomllib.loads(file.read_text("utf-8")).get("project", {})
    if project.get("name") != _DISTRIBUTION:
        # beside an installed unamp, another package may have left a file of that name
        return []
    return [
        metadata.EntryPoint(name, value, group)
        for name, value in project["entry-points"].get(group, {}).items()
    ]
