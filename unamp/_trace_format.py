"""Traces as JSON. The format is described in docs/trace.md; a change that a reader could trip over is another version."""

from __future__ import annotations

import json
import math
from typing import Any

import unamp
from unamp.policy import Rule
from unamp.records import OpRecord, Values
from unamp.tracing import Trace

__all__ = ["VERSION", "dump", "load"]

VERSION = 1
_FORMAT = "unamp trace"


def dump(trace: Trace, *, indent: int | None) -> str:
    """A trace as JSON."""
    data = {
        "format": _FORMAT,
        "version": VERSION,
        "unamp": unamp.__version__,
        "frameworks": trace.frameworks,
        "values": trace.keeps_values,
        "never_ran": list(trace.never_ran),
        "records": [_record(record) for record in trace.records],
    }
    return json.dumps(data, indent=indent, allow_nan=False)


def load(text: str) -> Trace:
    """The trace that `dump` wrote."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no trace: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError("this is no trace; Trace.to_json() writes one")
    if data.get("version") != VERSION:
        raise ValueError(f"this trace is of version {data.get('version')!r}; unamp {unamp.__version__} reads {VERSION}")
    try:
        trace = Trace(values=data["values"])
        trace.frameworks = dict(data["frameworks"])
        trace._never_ran = tuple(data["never_ran"])
        trace.records = [_read_record(record) for record in data["records"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this trace is damaged: {type(error).__name__}: {error}") from error
    return trace


def _record(record: OpRecord) -> dict[str, Any]:
    values = record.values
    return {
        **record._asdict(),
        "rule": record.rule.value,
        "values": None if values is None else {name: _plain(value) for name, value in values._asdict().items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        # JSON has no infinities; and nine digits tell any two float32 numbers apart.
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


def _read_record(data: dict[str, Any]) -> OpRecord:
    values = data["values"]
    return OpRecord(
        **{
            **data,
            "rule": Rule(data["rule"]),
            "inputs": tuple(data["inputs"]),
            "values": None if values is None else _read_values(values),
        }
    )


def _read_values(data: dict[str, Any]) -> Values:
    numbers = {name: float(data[name]) for name in ("max_abs", "mean", "norm")}
    return Values(shape=tuple(data["shape"]), nonfinite=data["nonfinite"], sample=tuple(map(float, data["sample"])), **numbers)
