"""An extension of griffe for the API reference: it turns our docstrings into plain Markdown.

Parameters that are described together (``allow, deny: see there``) are listed one by one. Tables of
text become lists. A ``::`` in front of code becomes a colon, or nothing. A comment that begins with
``#:`` becomes the docstring of its attribute.
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
        """Give an attribute the comment at its line, or above it, as its docstring."""
        if attr.docstring is None and attr.lineno is not None and (said := _comment(attr)):
            attr.docstring = griffe.Docstring(said, parent=attr)


def _divided(docstring: str) -> tuple[str, str, str]:
    """Return the text up to the arguments or attributes, that section, and the rest.

    The rest has the exceptions, which stay listed together.
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
