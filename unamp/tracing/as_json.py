"""Traces as JSON. The format is described in docs/trace.md; a change that a reader could trip over is another version."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from unamp._version import __version__
from unamp.adapter.records import OpRecord, Values
from unamp.policy import Policy, Rule

__all__ = ["VERSION", "Contents", "dump", "load"]

VERSION = 2
_READ = (1, 2)  # before 2 nothing was said of policies
_FORMAT = "unamp trace"


class Contents(NamedTuple):
    """All of a trace that is written down; see `unamp.tracing.Trace`."""

    values: bool
    frameworks: dict[str, str]
    never_ran: tuple[str, ...]
    records: list[OpRecord]


def dump(trace: Contents, *, indent: int | None) -> str:
    """Return a trace as JSON."""
    policies = list(dict.fromkeys(record.policy for record in trace.records if record.policy is not None))
    places: dict[Policy | None, int | None] = {None: None, **{policy: n for n, policy in enumerate(policies)}}
    data = {
        "format": _FORMAT,
        "version": VERSION,
        "unamp": __version__,
        "frameworks": trace.frameworks,
        "values": trace.values,
        "never_ran": list(trace.never_ran),
        "policies": [policy.to_data() for policy in policies],
        "records": [_record(record) | {"policy": places[record.policy]} for record in trace.records],
    }
    return json.dumps(data, indent=indent, allow_nan=False)


def load(text: str) -> Contents:
    """Return the trace that `dump` wrote.

    Raises:
        ValueError: where the text is none, is damaged, or of another version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no trace: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError("this is no trace; Trace.to_json() writes one")
    if data.get("version") not in _READ:
        read = " and ".join(map(str, _READ))
        raise ValueError(f"this trace is of version {data.get('version')!r:.20}; unamp {__version__} reads {read}")
    try:
        if not isinstance(data["values"], bool):
            raise TypeError(f"values must be true or false, not {data['values']!r:.40}")
        frameworks, never_ran = dict(data["frameworks"]), tuple(data["never_ran"])
        policies = [Policy.from_data(policy) for policy in data.get("policies", ())]
        records = [_read_record(record, policies) for record in data["records"]]
        return Contents(data["values"], frameworks, never_ran, records)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"this trace is damaged: {type(error).__name__}: {error}") from error


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


def _read_record(data: dict[str, Any], policies: list[Policy]) -> OpRecord:
    values, policy = data["values"], data.get("policy")
    return OpRecord(
        **{
            **data,
            "rule": Rule(data["rule"]),
            "inputs": tuple(data["inputs"]),
            "values": None if values is None else _read_values(values),
            "policy": None if policy is None else policies[policy],
        }
    )


def _read_values(data: dict[str, Any]) -> Values:
    numbers = {name: float(data[name]) for name in ("max_abs", "mean", "norm")}
    return Values(shape=tuple(data["shape"]), nonfinite=data["nonfinite"], sample=tuple(map(float, data["sample"])), **numbers)
