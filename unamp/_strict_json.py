"""JSON and TOML from elsewhere, read strictly: one kind of error, whatever is wrong with it.

A reader takes a value, and first the words for where it stands. It returns the value, or raises
`BadJSON`, which says where.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar

from unamp._version import __version__
from unamp.dtypes import LOW_DTYPES

T = TypeVar("T")
Reader = Callable[[str, object], T]

#: The most digits of a whole number: no count in a file of ours has more.
DIGITS = 18
_SHOWN = 40  # the most characters of a value that a message quotes


class BadJSON(ValueError):
    """A text is not JSON, or has a value that does not belong there; the message says where."""


def parsed(source: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        BadJSON: for a text that is no JSON or nested too deeply, for numbers that are not finite or
            too long, and for an object that names a field twice.
    """
    try:
        return json.loads(
            source,
            parse_constant=_no_number,
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=_without_doubles,
        )
    except json.JSONDecodeError as error:
        raise BadJSON(f"not JSON: {error}") from error
    except RecursionError:
        raise BadJSON("nested too deeply") from None


def toml(source: str, contents: Callable[[dict[str, Any]], T], what: str) -> T:
    """Return the contents of a TOML file that a person reads and writes.

    Args:
        source: the text.
        contents: reads the tables of the file.
        what: the kind of file, in a message: ``"precision file"``.

    Raises:
        TypeError: where the source is no text.
        ValueError: where it is no TOML, has more than a million characters, or is damaged.
    """
    import tomllib  # slow to import

    if not isinstance(source, str):
        raise TypeError(f"a {what} is text, not {type(source).__name__}")
    try:
        if len(source) > _LONGEST:
            raise BadJSON(f"it has more than {_LONGEST} characters")
        if _DEEP_KEY.search(source):  # tomllib takes hours for a key of a hundred thousand parts
            raise BadJSON("nested too deeply")
        return contents(tomllib.loads(source))
    except RecursionError:
        raise ValueError(f"this is no {what}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one
        raise ValueError(f"this is no {what}: {error}") from error


_LONGEST = 1 << 20
#: A hundred words with dots between: a key, or a text in a string that looks like one.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")


def document(
    source: str,
    contents: Callable[[dict[str, Any], int], T],
    *,
    what: str,
    form: str,
    versions: Sequence[int],
    writer: str,
) -> T:
    """Return the contents of a JSON text that states its format and version.

    Args:
        source: the text.
        contents: reads the fields, format and version included; it also takes the version.
        what: the kind of text, in a message: ``"trace"``.
        form: the format.
        versions: the versions that are read, in order.
        writer: the function that writes it, in a message.

    Raises:
        ValueError: where the text has another format or version, or is damaged.
    """
    try:
        data = parsed(source)
    except BadJSON as error:
        raise ValueError(f"this is no {what}: {error}") from error
    if not isinstance(data, dict) or data.get("format") != form:
        raise ValueError(f"this is no {what}; {writer} writes one")
    version = data.get("version")
    if type(version) is not int or version not in versions:
        older = ", ".join(map(str, versions[:-1]))
        read = f"{older} and {versions[-1]}" if older else str(versions[-1])
        raise ValueError(
            f"this {what} is of version {version!r:.20}; unamp {__version__} reads {read}"
        )
    try:
        return contents(data, version)
    except BadJSON as error:
        raise ValueError(f"this {what} is damaged: {error}") from error


def _no_number(source: str) -> NoReturn:
    raise BadJSON(f"{source} is no number of JSON")


def _float(source: str) -> float:
    if not math.isfinite(value := float(source)):
        raise BadJSON(f"the number {source[:_SHOWN]} is too large")
    return value


def _int(source: str) -> int:
    if len(source) > DIGITS:
        raise BadJSON(f"the number {source[:_SHOWN]}... is too large")
    return int(source)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadJSON("an object names the same field twice")
    return found


def expect(where: str, value: object, kinds: type[T] | tuple[type[T], ...], called: str) -> T:
    """Return a value, or raise `BadJSON` where it is not of a kind; a boolean is no number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise BadJSON(f"{where}: must be {called}, not {type(value).__name__}")
    return value


def fields(
    where: str, value: object, known: Collection[str], needed: Collection[str]
) -> dict[str, Any]:
    """Return an object that has all the needed fields, and none but the known ones."""
    found = expect(where, value, dict, "an object")
    if unknown := sorted(found.keys() - set(known)):
        raise BadJSON(f"{where}: unknown field {unknown[0][:_SHOWN]!r}")
    if missing := [name for name in needed if name not in found]:
        raise BadJSON(f"{where}: {missing[0]!r} is missing")
    return found


def text(where: str, value: object) -> str:
    """Return a text."""
    return expect(where, value, str, "text")


def plain_text(where: str, value: object) -> str:
    """Return a text that a terminal shows as it is: nothing in it is obeyed."""
    if not (found := text(where, value)).isprintable():
        raise BadJSON(f"{where}: must be printable text, not {found[:_SHOWN]!r}")
    return found


def low_dtype(where: str, value: object) -> str:
    """Return the name of a low dtype."""
    if (found := plain_text(where, value)) not in LOW_DTYPES:
        raise BadJSON(
            f"{where}: {found[:20]!r} is no low precision; valid: {', '.join(LOW_DTYPES)}"
        )
    return found


def whole(where: str, value: object) -> int:
    """Return a whole number that counts something."""
    if (found := expect(where, value, int, "a whole number")) < 0:
        raise BadJSON(f"{where}: must not be negative")
    return found


def number(where: str, value: object) -> float:
    """Return a number."""
    return expect(where, value, (int, float), "a number")


def each(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return the reader of a list."""

    def read_all(where: str, value: object) -> tuple[T, ...]:
        items = expect(where, value, list, "a list")
        return tuple(read(f"{where} {n}", item) for n, item in enumerate(items, 1))

    return read_all


def mapping(read: Reader[T]) -> Reader[dict[str, T]]:
    """Return the reader of an object whose fields are all read alike."""

    def read_all(where: str, value: object) -> dict[str, T]:
        found = expect(where, value, dict, "an object")
        return {name: read(f"{where}, {name[:_SHOWN]}", item) for name, item in found.items()}

    return read_all


def optional(read: Reader[T]) -> Reader[T | None]:
    """Return the reader of a value that may be null."""
    return lambda where, value: None if value is None else read(where, value)
