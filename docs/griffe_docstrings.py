"""For the API reference: what our docstrings have and Markdown has not.

Parameters that are described together (``allow, deny: see there``) are listed one by one; tables of
text become lists; a ``::`` in front of code is a colon, or nothing; and a comment that begins with
``#:`` is the docstring of what it stands at.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_TOGETHER = re.compile(
    r"^(?P<margin> +)(?P<names>\w+(?:, \w+)+): (?P<text>.*(?:\n(?P=margin) +.*)*)", re.MULTILINE
)
_TABLE = re.compile(r"^(?P<first>=+)  =+\n(?P<rows>(?:.+\n)+?)=+  =+$", re.MULTILINE)


class HouseStyle(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            before, section, after = _divided(obj.docstring.value)
            obj.docstring.value = (
                _as_markdown(before) + _TOGETHER.sub(_apart, section) + _as_markdown(after)
            )

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Give an attribute the comment that stands at it, or above it."""
        if attr.docstring is None and attr.lineno is not None and (said := _comment(attr)):
            attr.docstring = griffe.Docstring(said, parent=attr)


def _divided(docstring: str) -> tuple[str, str, str]:
    """Return the text up to the arguments or attributes, that section, and the rest.

    Exceptions are listed together by design.
    """
    start = re.search(r"^(Args|Attributes):\n", docstring, re.MULTILINE)
    if start is None:
        return docstring, "", ""
    end = re.compile(r"^\S", re.MULTILINE).search(docstring, start.end())
    at = len(docstring) if end is None else end.start()
    return docstring[: start.end()], docstring[start.end() : at], docstring[at:]


def _apart(match: re.Match[str]) -> str:
    return "\n".join(
        f"{match['margin']}{name}: {match['text']}" for name in match["names"].split(", ")
    )


def _as_markdown(text: str) -> str:
    return re.sub(r"(?m)^::\n", "", _TABLE.sub(_as_list, text)).replace("::\n", ":\n")


def _as_list(match: re.Match[str]) -> str:
    width = len(match["first"])
    rows = ((row[:width].strip(), row[width:].strip()) for row in match["rows"].splitlines())
    return "\n".join(f"- {left}: {right}" if left else f"  {right}" for left, right in rows)


def _comment(attr: griffe.Attribute) -> str:
    lines = attr.module.lines_collection[attr.module.filepath]  # type: ignore[index]
    at, last = attr.lineno - 1, (attr.endlineno or attr.lineno) - 1  # type: ignore[operator]
    if "#:" in lines[last]:
        return lines[last].partition("#:")[2].strip()
    above = []
    while at > 0 and lines[at - 1].lstrip().startswith("#:"):
        at -= 1
        above.append(lines[at].strip().removeprefix("#:").strip())
    return " ".join(reversed(above))
