"""Damaged data from files, for the tests of every reader."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

__all__ = ["STRANGE", "cut", "places", "spoilt"]

STRANGE = st.sampled_from(
    [
        *(None, True, -1, 10**17, 1e308, 0.5, -0.0),
        *("", "nan", "-inf", "O9", "low", "linear" * 99, "\x1b[31mred", "a\nb", "\u202e"),
        *([], {}, [[]], {"x": 1}, [None], [1, "x"], {"level": "O1"}),
    ]
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value in some data."""
    inner = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@st.composite
def spoilt(draw: st.DrawFn, sound: Any) -> Any:
    """Draw data with a few of its values replaced, removed, doubled or renamed."""
    data = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from([place for place in places(data) if place]))
        holder = data
        for key in above:
            holder = holder[key]
        match draw(st.sampled_from(["exchange", "remove", "double", "rename"])):
            case "exchange":
                holder[last] = copy.deepcopy(draw(STRANGE))
            case "remove":
                del holder[last]
            case "double" if isinstance(holder, list):
                holder.append(holder[last])
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from(["x", "__class__", "policy", "op"]))] = holder.pop(last)
        if not [place for place in places(data) if place]:
            break
    return data


@st.composite
def cut(draw: st.DrawFn, text: str) -> str:
    """Draw a text, or sometimes only its beginning."""
    return (
        text[: draw(st.integers(0, len(text)))]
        if draw(st.booleans()) and draw(st.booleans())
        else text
    )
