"""The history of a training as JSON; a change that a reader could trip over makes a new version."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

from unamp import _strict_json as strict
from unamp._version import __version__
from unamp.watching.samples import LIMIT, Contents, LayerSample, Sample

VERSION = 1
_FORMAT = "unamp watch"
_FIELDS = frozenset({"format", "version", "unamp", *Contents._fields})
_SHARES = ("zero", "subnormal", "flushed", "missing")


def dump(contents: Contents, *, indent: int | None) -> str:
    """Return a history as JSON."""
    samples = [
        sample._asdict() | {"layers": [_layer(each) for each in sample.layers]}
        for sample in contents.samples
    ]
    head = {"format": _FORMAT, "version": VERSION, "unamp": __version__}
    return json.dumps(
        {**head, **contents._asdict(), "samples": samples}, indent=indent, allow_nan=False
    )


def _layer(layer: LayerSample) -> dict[str, object]:
    """Return a layer without the fields at their defaults, with six digits for each number."""
    said = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in layer._asdict().items()
    }
    return {
        name: value
        for name, value in said.items()
        if name not in _OPTIONAL or value != _OPTIONAL[name]
    }


_OPTIONAL = LayerSample._field_defaults


def load(text: str) -> Contents:
    """Return the history that `dump` wrote.

    Raises:
        ValueError: where the text is no history, is damaged, or has another version.
    """
    what, writer = "history of a training", "History.to_json()"
    return strict.document(
        text, _contents, what=what, form=_FORMAT, versions=(VERSION,), writer=writer
    )


def _contents(data: dict[str, Any], version: int) -> Contents:
    strict.fields("the history", data, _FIELDS, sorted(_FIELDS))
    dtype = strict.low_dtype("dtype", data["dtype"])
    every, steps, skipped = (
        strict.whole(name, data[name]) for name in ("every", "steps", "skipped")
    )
    if every < 1:
        raise strict.BadJSON("every: must be 1 or more")
    samples = strict.each(_sample)("sample", data["samples"])
    if any(later.step <= sample.step for sample, later in pairwise(samples)) or (
        samples and samples[-1].step >= steps
    ):
        raise strict.BadJSON("samples: their steps must ascend, below the number of steps")
    return Contents(
        strict.plain_text("framework", data["framework"]), dtype, every, steps, skipped, samples
    )


def _sample(where: str, data: Any) -> Sample:
    strict.fields(where, data, Sample._fields, Sample._fields)
    step, skipped = (strict.whole(f"{where}, {name}", data[name]) for name in ("step", "skipped"))
    scale = float(strict.number(f"{where}, scale", data["scale"]))
    if not 0 < scale < LIMIT:
        raise strict.BadJSON(f"{where}, scale: must be a float32 number above 0")
    return Sample(step, scale, skipped, strict.each(_read_layer)(f"{where}, layer", data["layers"]))


def _read_layer(where: str, data: Any) -> LayerSample:
    needed = [name for name in LayerSample._fields if name not in _OPTIONAL]
    strict.fields(where, data, LayerSample._fields, needed)
    shares = {name: _share(f"{where}, {name}", data.get(name, 0.0)) for name in _SHARES}
    if math.fsum(shares.values()) > 1.0 + 1e-4:
        raise strict.BadJSON(f"{where}: its shares are more than the whole")
    size, nonfinite = (
        strict.whole(f"{where}, {name}", data.get(name, 0)) for name in ("size", "nonfinite")
    )
    update = strict.optional(strict.number)(f"{where}, update", data.get("update"))
    if update is not None and update < 0:
        raise strict.BadJSON(f"{where}, update: must not be negative")
    return LayerSample(
        strict.plain_text(f"{where}, layer", data["layer"]),
        size,
        nonfinite=nonfinite,
        swallowed=strict.optional(_share)(f"{where}, swallowed", data.get("swallowed")),
        update=None if update is None else float(update),
        **shares,
    )


def _share(where: str, value: object) -> float:
    share = float(strict.number(where, value))
    if not 0.0 <= share <= 1.0:
        raise strict.BadJSON(f"{where}: must be between 0 and 1")
    return share
