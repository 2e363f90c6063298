"""Patterns for layers, about the names that a trace shows, without the network's class in front.

- ``"encoder.0.norm"``: one layer, by its name
- ``"encoder.*.norm"``: ``*`` stands for any letters of one name
- ``"encoder.**.norm"``: ``**`` stands for any number of names, or none; at the end, for every layer
  below
- ``":LayerNorm"``: every layer of a class, or of one derived from it;
  ``":package.module.LayerNorm"``: of just that one
- ``"encoder.**:LayerNorm"``: both
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from unamp.errors import shortened

_CLASS = ":"


def as_pattern(pattern: object) -> str:
    """Return a pattern as text; a class stands for the layers of that class.

    Raises:
        TypeError: for a value that is no pattern.
        ValueError: for a text that is no pattern.
    """
    if isinstance(pattern, type):
        return f"{_CLASS}{pattern.__module__}.{pattern.__qualname__}"
    if not isinstance(pattern, str):
        raise TypeError(
            f"a pattern is the name of layers, or a class of layers; not {type(pattern).__name__}"
        )
    names, colon, kind = pattern.partition(_CLASS)
    empty = "" in names.split(".") if names or not colon else False
    if empty or (colon and "" in kind.split(".")) or not pattern.isprintable():
        raise ValueError(
            f"{shortened(pattern)} is no pattern for layers; write names with dots between them "
            "('encoder.*.norm'), or a class (':LayerNorm')"
        )
    return pattern


def matches(pattern: str, name: str, layer: object) -> bool:
    """Return whether a pattern matches a layer under one of its names."""
    return matches_names(pattern, name, _class_names(layer))


def _class_names(layer: object) -> Iterator[str]:
    """Yield the names of a layer's classes lazily: not every layer has a class yet (flax.linen)."""
    for kind in layer.__class__.__mro__:
        yield kind.__name__
        yield f"{kind.__module__}.{kind.__qualname__}"


def matches_names(pattern: str, name: str, classes: Iterable[str] | None) -> bool:
    """Return whether a pattern matches a layer; without classes, whether its names match."""
    names, colon, kind = pattern.partition(_CLASS)
    if colon and classes is not None and kind not in classes:
        return False
    if not names:
        return bool(colon)
    # the network itself has no name
    return bool(name) and expression(names).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def expression(names: str) -> re.Pattern[str]:
    """Return the regular expression for the names that a pattern without a class matches."""
    # Of several `**` in a row one is kept: each would try all that the others try.
    *above, last = [
        name for name, after in pairwise([*names.split("."), ""]) if not name == after == "**"
    ]
    parts = [r"(?:[^.]+\.)*" if name == "**" else _one(name) + r"\." for name in above]
    return re.compile("".join(parts) + (r"[^.]+(?:\.[^.]+)*" if last == "**" else _one(last)))


def _one(name: str) -> str:
    return "[^.]*".join(map(re.escape, re.split(r"\*+", name)))


def nothing_matches(pattern: str, network: str, layers: Sequence[tuple[str, object]]) -> str:
    """Return the message for a pattern that matches no layer, with the closest or all layers."""
    import difflib  # slow to import, and only an error needs it

    said = f"no layer of {network} matches {shortened(pattern)}; "
    names, colon, kind = pattern.partition(_CLASS)
    if names.partition(".")[0] == network:
        said += f"leave the network's own name out, {pattern.partition('.')[2]!r}; "
    there = [name for name, _ in layers if name]
    if colon and not names:
        there = list(dict.fromkeys(_CLASS + layer.__class__.__name__ for _, layer in layers))
        pattern = _CLASS + kind.rpartition(".")[2]
    # The pattern may begin at another layer, so last names are compared alone.
    last = {name: name.rpartition(".")[2] for name in there}
    close = difflib.get_close_matches(
        pattern.rpartition(".")[2], list(dict.fromkeys(last.values())), 2, 0.5
    )
    near = [name for name in there if last[name] in close]
    near.sort(key=lambda name: difflib.SequenceMatcher(None, name, pattern).ratio(), reverse=True)
    if near:
        return f"{said}did you mean {' or '.join(map(repr, near[:3]))}?"
    return (
        f"{said}there {'is' if len(there) == 1 else 'are'}: "
        f"{', '.join(there[:8]) or 'none'}{', ...' if there[8:] else ''}"
    )
