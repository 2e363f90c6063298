"""Reading the tables of facts that ship with the package."""

from __future__ import annotations

from typing import Any

__all__ = ["load_table", "parse_table"]


#: A string, which may hold anything but what would need an escape; or a comment.
_STRING_OR_COMMENT = r'("[^"\n]*")|#[^\n]*'

#: What a file that is read quickly must not have: escapes and strings over several lines; and outside of strings other
#: strings, inline tables, lists of tables, times, and what is JSON and no TOML.
_NOT_PLAIN = ("\\", '"""')
_NOT_PLAIN_CODE = ("'", "{", "[[", ":")


def load_table(name: str) -> dict[str, Any]:
    """Return a TOML file of `unamp/data`, parsed."""
    # Imported here because `import unamp` must stay cheap: it is not needed before the first policy.
    from importlib import resources

    return parse_table(resources.files("unamp").joinpath(f"data/{name}").read_text("utf-8"))


def parse_table(text: str) -> dict[str, Any]:
    """Return the tables of a TOML file; quickly where it is a plain one.

    Raises:
        tomllib.TOMLDecodeError: for anything but TOML.
    """
    if (plain := _plain(text)) is not None:
        return plain
    import tomllib  # slow to import, and most of our own files are plain

    return tomllib.loads(text)


def _plain(text: str) -> dict[str, Any] | None:
    """Return a TOML file that is tables of strings, numbers and lists of those; None for any other.

    The vocabulary has four thousand lines of that, which `tomllib`, written in Python, reads in a tenth of a second: most of
    what the first region of a process takes.
    """
    import json
    import re

    # Of the lines without a comment none is looked at string by string.
    text = re.sub(r"^.*#.*$", lambda line: re.sub(_STRING_OR_COMMENT, r"\1", line[0]), text, flags=re.MULTILINE)
    code = "".join(text.split('"')[::2])
    if any(mark in text for mark in _NOT_PLAIN) or any(mark in code for mark in _NOT_PLAIN_CODE):
        return None
    text = re.sub(r'^(?:([\w-]+)|"([^"\n]*)")\s*=', r',"\1\2":', text, flags=re.MULTILINE)
    text = re.sub(r",\s*\]", "]", text)
    first, *rest = re.split(r"^\[([\w.]+)\][ ]*$", text, flags=re.MULTILINE)
    # A comma before the first key of each table is one too many; what is no table or key of those is no JSON.
    bodies = "[" + ",".join("{" + body.strip().removeprefix(",") + "}" for body in (first, *rest[1::2])) + "]"
    decoder: Any = json.JSONDecoder(object_pairs_hook=list)
    try:
        # Nothing of this runs in Python, where a compiler that traces the first region of a process would follow it.
        pairs, end = decoder.scan_once(bodies, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    tables = [dict(each) for each in pairs]
    if end != len(bodies) or any(len(table) != len(each) for table, each in zip(tables, pairs, strict=True)):
        return None  # more than tables, or a key that stands twice: `tomllib` says what is wrong
    found: dict[str, Any] = tables[0]
    for path, table in zip(rest[::2], tables[1:], strict=True):
        place = found
        *above, last = path.split(".")
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                return None  # `tomllib` says what is wrong
        if last in place:
            return None
        place[last] = table
    return found
