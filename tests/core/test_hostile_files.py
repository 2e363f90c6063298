"""A reader of a damaged or hostile file names the defect, and nothing else happens."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from commanded import invoke
from hostile import cut, places, spoilt
from hypothesis import given
from hypothesis import strategies as st

import unamp
from unamp import OpRecord, Policy, Rule
from unamp.adapter.records import Call, Gradient, Shadow, Underflow, Values

POLICY = Policy("O2", "bfloat16", deny="softmax")
VALUES = Values((1, 3), 0, 2.0, 0.5, 3.0, (1.0, 2.0, -0.5), (Underflow("float16", 0.5, 0.25),))


def written() -> dict[str, Any]:
    """Return a whole trace, as data."""
    trace = unamp.Trace(values=True, shadow="float16", gradients=True)
    trace.frameworks["torch"] = "2.13.0"
    for op, layer in (("linear", "Net.0"), ("softmax", None), ("einsum", "Net.1")):
        trace.records.append(
            OpRecord(
                op,
                f"aten::{op}",
                Rule.LOW,
                ("float32",),
                "bfloat16",
                "bfloat16",
                False,
                layer,
                1,
                8,
                "torch",
                VALUES,
                POLICY,
                input_shapes=((2, None),),
                output_shape=(1, 3),
                equation="ij,jk->ik",
                shadow=Shadow("float16", 0.25, 2, 0.5, 0.25, "it draws random numbers"),
                call=Call(
                    "000001.safetensors", [{"tensor": 0}, [1, {"number": "inf"}]], {"dim": -1}
                ),
            )
        )
    trace.gradients.append(Gradient("float16", VALUES, 0.25, record=1, scale=65536.0))
    data: dict[str, Any] = json.loads(trace.to_json())
    return data


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Draw the text of a damaged trace."""
    return draw(cut(json.dumps(draw(spoilt(written())))))


@given(mutated())
def test_a_mutated_trace_is_read_or_refused_in_words(text: str) -> None:
    refused, trace = "", None
    try:
        trace = unamp.Trace.from_json(text)
    except ValueError as error:
        refused = str(error)
    if trace is None:
        assert refused.startswith(("this is no trace", "this trace is"))
        return
    assert all(line.isprintable() for line in trace.table().splitlines())
    if trace.shadow is not None:
        assert all(line.isprintable() for line in trace.shadow_table().splitlines())
    if trace.keeps_gradients:
        assert all(line.isprintable() for line in trace.gradient_table().splitlines())
    # compared as text, since NaN does not equal itself
    assert unamp.Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    unamp.compare_traces(trace, unamp.Trace.from_json(json.dumps(written()))).table()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"format": "unamp trace", "format": "x"}', "names the same field twice"),
        ('{"format": NaN}', "NaN is no number of JSON"),
        ('{"format": 1e999}', "is too large"),
        ("9" * 5000, "is too large"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_hostile_texts_are_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unamp.Trace.from_json(text)


#: The path to each part of a whole trace.
PLACES: dict[str, tuple[str | int, ...]] = {
    "record": ("records", 0),
    "values": ("records", 0, "values"),
    "underflow": ("records", 0, "values", "underflow", 0),
    "shadow": ("records", 0, "shadow"),
    "call": ("records", 0, "call"),
    "gradient": ("gradients", 0),
}
DAMAGES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "record": [
        ({"input_shapes": [[2, 8], [4, 8]]}, "record 1, input_shapes: 2 for 1 inputs"),
        ({"output_shape": [-1]}, "record 1, output_shape 1: must not be negative"),
        (
            {"output_shape": [10**10, 10**10]},
            "record 1, output_shape: no tensor has so many numbers",
        ),
        ({"output_shape": [10**17] * 300_000}, "no tensor has so many numbers"),
        ({"equation": "a\nb"}, "record 1, equation: must be printable"),
        ({"equation": 1}, "record 1, equation: must be text"),
    ],
    "values": [
        ({"norm": -1.0}, "max_abs and norm must be 0 or more"),
        ({"norm": "nan"}, "max_abs and norm must be 0 or more"),
        ({"max_abs": "nan"}, "max_abs and norm must be 0 or more"),
        ({"shape": [10**17] * 300_000}, "no tensor has so many dimensions"),
    ],
    "underflow": [
        (
            {"dtype": "float32"},
            (
                "record 1, values, underflow 1.*'float32' is no low precision; "
                "valid: float16, bfloat16"
            ),
        ),
        (
            {"subnormal": 0.7, "flushed": 0.7},
            "record 1, values, underflow 1.*shares must be between 0 and 1",
        ),
        ({"flushed": -0.1}, "record 1, values, underflow 1.*shares must be between 0 and 1"),
        ({"flushed": "nan"}, "record 1, values, underflow 1.*flushed: must be a number"),
    ],
    "shadow": [
        ({"dtype": "float32"}, "record 1, shadow, dtype: 'float32' is no low precision"),
        ({"dtype": "bfloat16"}, "record 1, shadow: its dtype is not that of the trace"),
        ({"error": -1.0}, "record 1, shadow, error: must be 0 or more"),
        ({"error": "nan"}, "record 1, shadow, error: must be 0 or more"),
        ({"overflow": 0.5}, "record 1, shadow, overflow: must be a whole number"),
        ({"subnormal": 0.9}, "record 1, shadow: shares must be between 0 and 1"),
        ({"left_out": "a\nb"}, "record 1, shadow, left_out: must be printable"),
        ({"more": 1}, "record 1, shadow: unknown field 'more'"),
    ],
    "call": [
        ({"file": "../000001.safetensors"}, "file: must be a name like"),
        ({"file": "/etc/passwd"}, "file: must be a name like"),
        ({"file": "000001.safetensors\n"}, "must be printable text"),
        ({"file": ""}, "file: must be a name like"),
        ({"left_out": "it draws"}, "empty for what was left out"),
        ({"args": [{"tensor": 1}]}, "numbered from 0"),
        ({"args": [{"tensor": 0}, {"tensor": 0}]}, "numbered from 0"),
        ({"args": [{"file": "x"}]}, "unknown field 'file'"),
        ({"args": [[[[[[[[[[[[]]]]]]]]]]]]}, "nested too deeply"),
        ({"kwargs": {"a b": 1}}, "names of arguments"),
        ({"kwargs": []}, "must be an object"),
    ],
    "gradient": [
        ({"record": 3}, "gradients 1.*record: there is no record 3"),
        ({"record": -1}, "gradients 1.*record: must not be negative"),
        ({"record": None}, "gradients 1.*must be of either a record or a parameter"),
        ({"parameter": "a.b"}, "gradients 1.*must be of either a record or a parameter"),
        ({"parameter": 3}, "gradients 1.*parameter: must be"),
        ({"step": -1}, "gradients 1.*step: must not be negative"),
        ({"zeros": 1.5}, "gradients 1.*zeros: a share must be between 0 and 1"),
        ({"scale": 0}, "gradients 1.*scale: must be more than 0"),
        ({"scale": "nan"}, "gradients 1.*scale: must be more than 0"),
        ({"values": None}, "gradients 1.*must have either values or a reason in left_out"),
        ({"left_out": "why"}, "gradients 1.*must have either values or a reason in left_out"),
        ({"left_out": "a\nb"}, "gradients 1.*left_out: must be printable"),
        ({"dtype": 3}, "gradients 1.*dtype: must be"),
        ({"more": 1}, "gradients 1.*unknown field 'more'"),
    ],
}


@pytest.mark.parametrize(
    ("where", "damage", "says"),
    [(where, *each) for where, damages in DAMAGES.items() for each in damages],
)
def test_a_damaged_trace_is_refused(where: str, damage: dict[str, Any], says: str) -> None:
    data: Any = written()
    place = data
    for key in PLACES[where]:
        place = place[key]
    place |= damage
    with pytest.raises(ValueError, match=f"this trace is damaged: .*{says}"):
        unamp.Trace.from_json(json.dumps(data))


def test_a_trace_of_operations_that_are_registered_elsewhere_is_compared() -> None:
    data = written()
    for record in data["records"]:
        record["op"] = "theirs::attention"
    reference = unamp.Trace.from_json(json.dumps(data))
    data["records"][0]["values"] |= {"norm": "inf", "sample": [9.0, 9.0, 9.0]}
    data["records"].append(data["records"][1])
    compared = unamp.compare_traces(reference, unamp.Trace.from_json(json.dumps(data)))
    assert "an operation that is not registered here" in compared.table()


def test_no_command_ends_in_a_traceback(tmp_path: Path) -> None:
    """Give each of `trace`, `compare` and `diff --trace` a few hundred damaged files."""
    sound, spoilt = tmp_path / "sound.json", tmp_path / "spoilt.json"
    sound.write_text(json.dumps(written()))
    chance = random.Random(0)
    strange = [None, True, -1, 1e308, "", "nan", "\x1b[31m", [], {}, [[]], {"x": 1}, "O9", [1, "x"]]
    for _ in range(200):
        data = copy.deepcopy(written())
        *above, last = chance.choice([place for place in places(data) if place])
        holder: Any = data
        for key in above:
            holder = holder[key]
        holder[last] = chance.choice(strange)
        spoilt.write_text(json.dumps(data))
        for arguments in (
            ["trace", spoilt],
            ["compare", sound, spoilt],
            ["diff", "paddle", "torch-cuda", "--trace", spoilt],
        ):
            done = invoke(*arguments)
            assert done.exit_code in (0, 1, 2), (data, done.exception)
            assert done.exception is None or isinstance(done.exception, SystemExit), (
                data,
                done.exception,
            )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe\x00", "it is no UTF-8"),
        (b"PK\x03\x04\x80", "it is no UTF-8"),
        (b"", "not JSON"),
        (b"\x00" * 64, "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_bytes_that_are_no_text_are_one_message(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(content)
    done = invoke("trace", file, COLUMNS="300")
    assert done.exit_code == 2
    assert f"this is no trace: {says}" in done.stderr
    assert "Traceback" not in done.output
