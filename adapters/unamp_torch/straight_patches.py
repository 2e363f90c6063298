"""The exchange of attributes of modules, written out: no more than a look and an assignment for each.

That is a large part of what opening a region costs, and a loop over them would take twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Exchange", "Ready", "written_out"]

#: What replaces all of them, and what puts them back. Where one does not find what it expects in each place (somebody else has
#: put something there), it changes nothing and returns False.
Exchange = tuple[Callable[[], bool], Callable[[], bool]]


#: A module's namespace, the attribute's name, the original, and the replacement.
Ready = tuple[dict[str, Any], str, Any, Any]


def written_out(hooks: Sequence[Ready]) -> Exchange:
    """Return the exchange of some attributes."""
    places: dict[str, Any] = {}
    for n, (namespace, _, original, replacement) in enumerate(hooks):
        places |= {f"space{n}": namespace, f"original{n}": original, f"replacement{n}": replacement}
    names = [name for _, name, _, _ in hooks]
    return _function(names, places, "original", "replacement"), _function(names, places, "replacement", "original")


def _function(names: Sequence[str], places: dict[str, Any], found: str, wanted: str) -> Callable[[], bool]:
    asked = " and ".join([f"space{n}[{name!r}] is {found}{n}" for n, name in enumerate(names)] or ["True"])
    lines = [
        f"def exchange({', '.join(f'{place}={place}' for place in places)}):",
        "    try:",
        f"        if {asked}:",
        *(f"            space{n}[{name!r}] = {wanted}{n}" for n, name in enumerate(names)),
        "            return True",
        "    except KeyError:",  # somebody has deleted one
        "        pass",
        "    return False",
    ]
    made = dict(places)
    exec("\n".join(lines), made)
    exchange: Callable[[], bool] = made["exchange"]
    return exchange
