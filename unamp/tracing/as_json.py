"""Traces as JSON, in the format of docs/trace-json.md.

A change that a reader could trip over makes a new version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from unamp import _strict_json as strict
from unamp._version import __version__
from unamp.adapter.records import SAMPLE, Call, Gradient, OpRecord, Shadow, Shape, Underflow, Values
from unamp.dtypes import FLOAT8
from unamp.policy import Policy, Rule

VERSION = 4
_READ = (1, 2, 3, 4)
#: The fields that each version added.
_SINCE: Mapping[int, frozenset[str]] = {
    2: frozenset({"policies", "policy"}),
    3: frozenset({"input_shapes", "output_shape", "equation", "underflow", "shadow"}),
    4: frozenset({"gradients", "rank", "step", "call"}),
}
#: Names that may be missing.
_OPTIONAL = frozenset({"shadow", "gradients", "rank", "step", "call", "parameter"})
_FORMAT = "unamp trace"


class Contents(NamedTuple):
    """The contents of a trace's JSON; see `unamp.tracing.Trace`."""

    values: bool
    frameworks: dict[str, str]
    never_ran: tuple[str, ...]
    records: list[OpRecord]
    shadow: str | None = None
    gradients: list[Gradient] | None = None
    rank: int | None = None


def dump(trace: Contents, *, indent: int | None) -> str:
    """Return a trace as JSON."""
    policies = list(
        dict.fromkeys(record.policy for record in trace.records if record.policy is not None)
    )
    places: dict[Policy | None, int | None] = {
        None: None,
        **{policy: n for n, policy in enumerate(policies)},
    }
    data = {
        "format": _FORMAT,
        "version": VERSION,
        "unamp": __version__,
        "frameworks": trace.frameworks,
        "values": trace.values,
        "shadow": trace.shadow,
        "never_ran": list(trace.never_ran),
        "policies": [policy.to_data() for policy in policies],
        "rank": trace.rank,
        "records": [_record(record, places[record.policy]) for record in trace.records],
        "gradients": None if trace.gradients is None else list(map(_plain, trace.gradients)),
    }
    return json.dumps(data, indent=indent, allow_nan=False)


def load(text: str) -> Contents:
    """Return the trace that `dump` wrote.

    Raises:
        ValueError: where the text is no trace, is damaged, or has another version.
    """
    return strict.document(
        text, _contents, what="trace", form=_FORMAT, versions=_READ, writer="Trace.to_json()"
    )


def _contents(data: dict[str, Any], version: int) -> Contents:
    names = _known(_FIELDS, version)
    strict.fields("the trace", data, names, sorted(names - _OPTIONAL))
    policies = strict.each(_policy)("policies", data.get("policies", []))
    frameworks = strict.mapping(strict.plain_text)("frameworks", data["frameworks"])
    shadow = strict.optional(_shadow_dtype)("shadow", data.get("shadow"))
    read = strict.each(lambda where, record: _read_record(where, record, policies, version))
    records = read("record", data["records"])
    if other := next(
        (
            n
            for n, record in enumerate(records, 1)
            if record.shadow and record.shadow.dtype != shadow
        ),
        None,
    ):
        raise strict.BadJSON(f"record {other}, shadow: its dtype is not that of the trace")
    return Contents(
        strict.expect("values", data["values"], bool, "true or false"),
        {
            strict.plain_text("a framework", name): its_version
            for name, its_version in frameworks.items()
        },
        strict.each(strict.plain_text)("never_ran", data["never_ran"]),
        list(records),
        shadow,
        strict.optional(_read_gradients(len(records), version))("gradients", data.get("gradients")),
        strict.optional(strict.whole)("rank", data.get("rank")),
    )


def _policy(where: str, data: Any) -> Policy:
    try:
        return Policy.from_data(data)
    except (TypeError, ValueError) as error:
        raise strict.BadJSON(f"{where}: {error}") from error


def _record(record: OpRecord, policy: int | None) -> dict[str, object]:
    fields = record._asdict() | {"rule": record.rule.value, "policy": policy}
    fields |= {name: _plain(fields[name]) for name in ("values", "shadow")}
    call = fields.pop("call")
    return fields if call is None else fields | {"call": call._asdict()}


def _plain(value: object) -> object:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        # JSON has no infinities. Nine digits tell any two float32 numbers apart.
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


_text_or_nothing = strict.optional(strict.plain_text)
_sizes = strict.each(strict.optional(strict.whole))
_MOST_DIMENSIONS = 256


def _shape(where: str, value: object) -> Shape:
    shape = _sizes(where, value)
    if len(shape) > _MOST_DIMENSIONS or math.prod(size or 1 for size in shape) >= 1 << 63:
        raise strict.BadJSON(f"{where}: no tensor has so many numbers")
    return shape


#: The reader of each field of a record; `_read_record` reads `rule`, `values` and `policy`.
_READERS: dict[str, strict.Reader[Any]] = {
    "op": strict.plain_text,
    "native": strict.plain_text,
    "inputs": strict.each(strict.plain_text),
    "compute": _text_or_nothing,
    "output": _text_or_nothing,
    "emulated": lambda where, value: strict.expect(where, value, bool, "true or false"),
    "layer": _text_or_nothing,
    "casts": strict.whole,
    "cast_bytes": strict.whole,
    "framework": _text_or_nothing,
    "input_shapes": strict.each(_shape),
    "output_shape": strict.optional(_shape),
    "equation": _text_or_nothing,
}
_RULES = {rule.value: rule for rule in Rule}


def _read_record(where: str, data: Any, policies: tuple[Policy, ...], version: int) -> OpRecord:
    names = _known(_OF_RECORD, version)
    strict.fields(where, data, names, sorted(names - _OPTIONAL))
    rule = strict.plain_text(f"{where}, rule", data["rule"])
    if rule not in _RULES:
        raise strict.BadJSON(f"{where}, rule: {rule[:20]!r} is none; valid: {', '.join(_RULES)}")
    place = strict.optional(strict.whole)(f"{where}, policy", data.get("policy"))
    if place is not None and place >= len(policies):
        raise strict.BadJSON(f"{where}, policy: there is no policy {place}")
    read = {
        name: reader(f"{where}, {name}", data[name])
        for name, reader in _READERS.items()
        if name in names
    }
    if len(shapes := read.get("input_shapes", ())) not in (0, len(read["inputs"])):
        raise strict.BadJSON(
            f"{where}, input_shapes: {len(shapes)} for {len(read['inputs'])} inputs"
        )
    values = strict.optional(partial(_read_values, version=version))(
        f"{where}, values", data["values"]
    )
    policy = None if place is None else policies[place]
    shadow = strict.optional(_read_shadow)(f"{where}, shadow", data.get("shadow"))
    step = strict.whole(f"{where}, step", data.get("step", 0))
    call = strict.optional(_read_call)(f"{where}, call", data.get("call"))
    return OpRecord(
        **read, rule=_RULES[rule], values=values, policy=policy, shadow=shadow, step=step, call=call
    )


def _read_gradients(records: int, version: int) -> strict.Reader[list[Gradient]]:
    """Return the reader of the gradients of a trace that has `records` records."""

    def read(where: str, data: Any) -> Gradient:
        strict.fields(where, data, Gradient._fields, sorted(_OF_GRADIENT - _OPTIONAL))
        record = strict.optional(strict.whole)(f"{where}, record", data["record"])
        parameter: str = strict.plain_text(f"{where}, parameter", data.get("parameter", ""))
        if (record is None) is not bool(parameter):
            raise strict.BadJSON(f"{where}: must be of either a record or a parameter")
        if record is not None and record >= records:
            raise strict.BadJSON(f"{where}, record: there is no record {record}")
        values = strict.optional(partial(_read_values, version=version))(
            f"{where}, values", data["values"]
        )
        left_out = strict.plain_text(f"{where}, left_out", data["left_out"])
        if (values is None) is not bool(left_out):
            raise strict.BadJSON(f"{where}: must have either values or a reason in left_out")
        zeros = float(strict.number(f"{where}, zeros", data["zeros"]))
        if not 0 <= zeros <= 1:
            raise strict.BadJSON(f"{where}, zeros: a share must be between 0 and 1")
        scale = strict.optional(_number)(f"{where}, scale", data["scale"])
        if scale is not None and not scale > 0:
            raise strict.BadJSON(f"{where}, scale: must be more than 0")
        dtype: str = strict.plain_text(f"{where}, dtype", data["dtype"])
        result = strict.whole(f"{where}, result", data["result"])
        step = strict.whole(f"{where}, step", data.get("step", 0))
        return Gradient(dtype, values, zeros, result, record, scale, left_out, parameter, step)

    return lambda where, data: list(strict.each(read)(where, data))


def _read_call(where: str, data: Any) -> Call:
    strict.fields(where, data, Call._fields, Call._fields)
    file, left_out = (
        strict.plain_text(f"{where}, {name}", data[name]) for name in ("file", "left_out")
    )
    if not (_FILE.fullmatch(file) if not left_out else file == ""):
        raise strict.BadJSON(
            f"{where}, file: must be a name like '000001.safetensors', "
            "and empty for what was left out"
        )
    tensors: list[int] = []
    args = [
        _argument(f"{where}, args {n}", value, tensors)
        for n, value in enumerate(_list(f"{where}, args", data["args"]), 1)
    ]
    read = strict.mapping(lambda place, value: _argument(place, value, tensors))
    kwargs = read(f"{where}, kwargs", data["kwargs"])
    if not all(name.isidentifier() for name in kwargs):
        raise strict.BadJSON(f"{where}, kwargs: names must be names of arguments")
    if tensors != list(range(len(tensors))):
        raise strict.BadJSON(f"{where}: its tensors must be numbered from 0 in their order")
    return Call(file, args, kwargs, left_out)


def _argument(where: str, value: object, tensors: list[int], depth: int = 0) -> object:
    """Return an argument of a call; append the numbers of its tensors to `tensors`."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return strict.plain_text(where, value)
    if isinstance(value, dict):
        if value.keys() == {"number"} and value["number"] in ("inf", "-inf", "nan"):
            return dict(value)
        tensors.append(
            strict.whole(where, strict.fields(where, value, ("tensor",), ("tensor",))["tensor"])
        )
        return dict(value)
    if depth == _DEEPEST:
        raise strict.BadJSON(f"{where}: nested too deeply")
    return [_argument(where, each, tensors, depth + 1) for each in _list(where, value)]


def _list(where: str, value: object) -> list[object]:
    found: list[object] = strict.expect(where, value, list, "a list")
    return found


_FILE = re.compile(r"\d{6}\.safetensors", re.ASCII)
_DEEPEST = 8  # levels of lists in an argument


def _read_values(where: str, data: Any, version: int) -> Values:
    names = _known(_OF_VALUES, version)
    strict.fields(where, data, names, sorted(names))
    shape = strict.each(strict.whole)(f"{where}, shape", data["shape"])
    if len(shape) > _MOST_DIMENSIONS:
        raise strict.BadJSON(f"{where}, shape: no tensor has so many dimensions")
    sample = strict.each(_number)(f"{where}, sample", data["sample"])
    if len(sample) != (kept := min(math.prod(shape), SAMPLE)):
        raise strict.BadJSON(
            f"{where}, sample has {len(sample)} numbers; of this shape a trace keeps {kept}"
        )
    numbers = {
        name: _number(f"{where}, {name}", data[name]) for name in ("max_abs", "mean", "norm")
    }
    if not (numbers["max_abs"] >= 0 and numbers["norm"] >= 0):
        raise strict.BadJSON(f"{where}: max_abs and norm must be 0 or more")
    nonfinite = strict.whole(f"{where}, nonfinite", data["nonfinite"])
    underflow = strict.each(_read_underflow)(f"{where}, underflow", data.get("underflow", []))
    return Values(shape=shape, nonfinite=nonfinite, sample=sample, underflow=underflow, **numbers)


def _read_underflow(where: str, data: Any) -> Underflow:
    strict.fields(where, data, Underflow._fields, Underflow._fields)
    return Underflow(strict.low_dtype(f"{where}, dtype", data["dtype"]), *_shares(where, data))


def _read_shadow(where: str, data: Any) -> Shadow:
    strict.fields(where, data, Shadow._fields, Shadow._fields)
    dtype = _shadow_dtype(f"{where}, dtype", data["dtype"])
    left_out = strict.plain_text(f"{where}, left_out", data["left_out"])
    error = _number(f"{where}, error", data["error"])
    overflow = strict.whole(f"{where}, overflow", data["overflow"])
    if not error >= 0:
        raise strict.BadJSON(f"{where}, error: must be 0 or more")
    return Shadow(dtype, error, overflow, *_shares(where, data), left_out)


def _shares(where: str, data: dict[str, Any]) -> tuple[float, float]:
    subnormal, flushed = (
        float(strict.number(f"{where}, {name}", data[name])) for name in ("subnormal", "flushed")
    )
    if not (subnormal >= 0 and flushed >= 0 and subnormal + flushed <= 1):
        raise strict.BadJSON(f"{where}: shares must be between 0 and 1")
    return subnormal, flushed


def _shadow_dtype(where: str, value: object) -> str:
    return value if isinstance(value, str) and value in FLOAT8 else strict.low_dtype(where, value)


def _number(where: str, value: object) -> float:
    """Return a number; infinities and NaN are text, as `_plain` writes them."""
    return float(
        value
        if isinstance(value, str) and value in ("inf", "-inf", "nan")
        else strict.number(where, value)
    )


def _known(names: frozenset[str], version: int) -> frozenset[str]:
    """Return the names that are fields of a version of the format."""
    return names.difference(*(new for since, new in _SINCE.items() if version < since))


_FIELDS = frozenset(
    (
        "format version unamp frameworks values shadow never_ran policies rank records gradients"
    ).split()
)
_OF_RECORD = frozenset(OpRecord._fields)
_OF_VALUES = frozenset(Values._fields)
_OF_GRADIENT = frozenset(Gradient._fields)
