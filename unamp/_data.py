"""Reading the tables of facts that ship with the package."""

from __future__ import annotations

from typing import Any

__all__ = ["load_table"]


#: A string, which may hold anything but what would need an escape; or a comment.
_STRING_OR_COMMENT = r'("[^"\n]*")|#[^\n]*'

#: What a file that is read quickly must not have outside of strings: escapes, other strings, inline tables, lists of tables.
_NOT_PLAIN = ("\\", "'", '"""', "{", "[[")


def load_table(name: str) -> dict[str, Any]:
    """Return a TOML file of `unamp/data`, parsed."""
    # Imported here because `import unamp` must stay cheap: neither module is needed before the first policy.
    from importlib import resources

    text = resources.files("unamp").joinpath(f"data/{name}").read_text("utf-8")
    if (plain := _plain(text)) is not None:
        return plain
    import tomllib

    return tomllib.loads(text)


def _plain(text: str) -> dict[str, Any] | None:
    """Return a TOML file that is tables of strings, numbers and lists of those; None for any other.

    The vocabulary has four thousand lines of that, which `tomllib`, written in Python, reads in a tenth of a second: most of
    what the first region of a process takes.
    """
    import json
    import re

    text = re.sub(_STRING_OR_COMMENT, r"\1", text)
    if any(mark in text for mark in _NOT_PLAIN):
        return None
    text = re.sub(r"^([\w-]+)\s*=", r',"\1":', text, flags=re.MULTILINE)
    text = re.sub(r",\s*\]", "]", text)
    first, *rest = re.split(r"^\[([\w.]+)\][ ]*$", text, flags=re.MULTILINE)
    try:
        # A comma before the first key of each table is one too many; what is no table or key of those is no JSON.
        tables = json.loads("[" + ",".join("{" + body.strip().removeprefix(",") + "}" for body in (first, *rest[1::2])) + "]")
    except ValueError:
        return None
    found: dict[str, Any] = tables[0]
    for path, table in zip(rest[::2], tables[1:], strict=True):
        place = found
        *above, last = path.split(".")
        for part in above:
            place = place.setdefault(part, {})
        if last in place:
            return None  # `tomllib` says what is wrong
        place[last] = table
    return found
