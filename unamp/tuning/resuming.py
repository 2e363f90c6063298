"""The file of a search to resume: its trials and their errors. docs/tune.md is the format."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unamp import _strict_json as strict
from unamp.tuning.places import Place

_FORMAT, _VERSION = "unamp tune", 1
_LONGEST = 1 << 28
_FIELDS = ("format", "version", "setting", "places", "results", "tried")


class Memory(NamedTuple):
    """The contents of a file.

    Attributes:
        setting: the settings that must be the same for errors to be comparable.
        places: all places, in order.
        results: the norms of each batch's float32 results; they show whether the network changed.
        tried: the sets of places that were held, as places' numbers, with their errors by batch.
    """

    setting: Mapping[str, str]
    places: tuple[Place, ...]
    results: tuple[tuple[float, ...], ...]
    tried: tuple[tuple[frozenset[int], tuple[float, ...]], ...]


def write(path: str | os.PathLike[str], memory: Memory) -> None:
    """Write a file; one that exists is replaced as a whole."""
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "setting": dict(memory.setting),
        "places": [list(place) for place in memory.places],
        "results": memory.results,
        "tried": [
            {
                "held": sorted(held),
                "errors": [None if math.isinf(error) else error for error in errors],
            }
            for held, errors in memory.tried
        ],
    }
    beside = Path(f"{os.fspath(path)}.part")
    beside.write_text(json.dumps(data), "utf-8")
    beside.replace(path)


def read(path: str | os.PathLike[str], expected: Memory) -> Memory:
    """Return the trials of the same search that a file has.

    Args:
        expected: the search that goes on; its trials do not matter.

    Raises:
        OSError: where the file cannot be read.
        ValueError: where it is no such file, or has another search; the message says why.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_text("utf-8")
        if len(text) > _LONGEST:
            raise strict.BadJSON(f"more than {_LONGEST} characters")
        found = _memory(strict.parsed(text))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: this is no search of unamp.tune: it is no UTF-8") from error
    except strict.BadJSON as error:
        raise ValueError(f"{where}: this is no search of unamp.tune: {error}") from error
    if different := _different(found, expected):
        raise ValueError(
            f"{where}: this is another search: {different}; name another file, or delete this one"
        )
    return found


def _different(found: Memory, expected: Memory) -> str:
    for name, value in expected.setting.items():
        if found.setting.get(name) != value:
            return f"its {name} is {found.setting.get(name, 'unknown')}, and now {value}"
    if found.places != expected.places:
        return "the network runs other operations now"
    if [len(norms) for norms in found.results] != [len(norms) for norms in expected.results]:
        return "it has other batches, or results"
    pairs = zip(sum(found.results, ()), sum(expected.results, ()), strict=True)
    if not all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) for a, b in pairs):
        return "the float32 results are others: the weights or the batches have changed"
    return ""


def _memory(data: object) -> Memory:
    found = strict.fields("the file", data, _FIELDS, _FIELDS)
    if (
        found["format"] != _FORMAT
        or found["version"] != _VERSION
        or isinstance(found["version"], bool)
    ):
        raise strict.BadJSON(f"format: must be {_FORMAT!r}, version {_VERSION}")
    places = strict.each(_place)("places", found["places"])
    results = strict.each(strict.each(strict.number))("results", found["results"])

    def trial(where: str, value: object) -> tuple[frozenset[int], tuple[float, ...]]:
        entry = strict.fields(where, value, ("held", "errors"), ("held", "errors"))
        held = frozenset(strict.each(strict.whole)(f"{where}, held", entry["held"]))
        errors = strict.each(_error)(f"{where}, errors", entry["errors"])
        if any(number >= len(places) for number in held):
            raise strict.BadJSON(f"{where}, held: there is no such place")
        if not 0 < len(errors) <= len(results):
            raise strict.BadJSON(
                f"{where}, errors: there must be one for each batch at most, and one at least"
            )
        return held, errors

    setting = strict.mapping(strict.plain_text)("setting", found["setting"])
    return Memory(setting, places, results, strict.each(trial)("tried", found["tried"]))


def _place(where: str, value: object) -> Place:
    parts: Sequence[str] = strict.each(strict.plain_text)(where, value)
    if len(parts) != 2:
        raise strict.BadJSON(f"{where}: must be a layer and an operation")
    return Place(*parts)


def _error(where: str, value: object) -> float:
    return math.inf if value is None else strict.number(where, value)
