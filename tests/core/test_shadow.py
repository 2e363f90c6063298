"""Shadows in traces are in the record, the table, the file and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from commanded import invoke

import unamp
from unamp import OpRecord, Rule, trace
from unamp.adapter.records import Shadow
from unamp.adapter.shadowing import LeftOut, shadow

EXACT = OpRecord(
    "exp", "n", Rule.UNTOUCHED, ("float32",), "float32", "float32", layer="Net.a", output_shape=(4,)
)
BAD = Shadow("float16", 0.25, 2, 0.0, 0.25)
SMALL = Shadow("float16", 1e-3)


def recorded(fake: Any, *records: OpRecord) -> unamp.Trace:
    with trace(shadow="fp16") as t:
        for record in records:
            fake.sinks[-1](record)
    return t


def rows(*numbers: Sequence[float]) -> Callable[[], list[Any]]:
    return lambda: [np.array(each, np.float64) for each in numbers]


# --- one operation --------------------------------------------------------------------------------


def test_what_is_lost_is_counted() -> None:
    inf, nan = math.inf, math.nan
    own = rows([3.0, 4.0, 1e5, 1e-9, inf, 5e-5], [1.0, nan])
    low = rows([3.0, 4.5, inf, 0.0, inf, 5e-5], [nan, nan])
    found = shadow("float16", EXACT, own, low)
    assert found == Shadow("float16", pytest.approx(0.1), 2, 1 / 6, 1 / 6)


def test_an_error_beside_zero_is_infinite_and_of_nothing_is_none() -> None:
    assert shadow("float16", EXACT, rows([0.0]), rows([0.5])).error == math.inf
    for nothing in ([0.0], [], [math.nan]):
        assert shadow("float16", EXACT, rows(nothing), rows(nothing)) == Shadow("float16")


def refuse() -> list[Any]:
    raise LeftOut("it is a test")


def fail() -> list[Any]:
    raise RuntimeError("no kernel\nfor this")


@pytest.mark.parametrize(
    ("record", "low", "why"),
    [
        (EXACT._replace(inputs=()), fail, "it has no floating input"),
        (EXACT._replace(output=None), fail, "it has no floating result"),
        (
            EXACT._replace(inputs=("float64",)),
            fail,
            "it has an input in float64, which no rule casts",
        ),
        (EXACT._replace(compute="bfloat16"), fail, "it ran low in the network"),
        (EXACT._replace(emulated=True), fail, "it ran low in the network"),
        (EXACT, refuse, "it is a test"),
        (EXACT, fail, "in float16 it raises RuntimeError: no kernel for this"),
        (EXACT, rows([1.0, 2.0]), "in float16 its result has another shape"),
    ],
)
def test_what_is_left_out_is_said(record: OpRecord, low: Callable[[], list[Any]], why: str) -> None:
    assert shadow("float16", record, rows([1.0]), low) == Shadow("float16", left_out=why)


# --- the trace ------------------------------------------------------------------------------------


def test_the_worst_stands_first_and_what_was_left_out_last(fake: Any) -> None:
    t = recorded(
        fake,
        EXACT._replace(op="mm", shadow=SMALL),
        EXACT._replace(op="rrelu", shadow=Shadow("float16", left_out="it draws random numbers")),
        EXACT._replace(op="log", shadow=Shadow("float16", 0.5)),
        EXACT._replace(shadow=SMALL),
        EXACT._replace(shadow=BAD),
    )
    assert [(line.op, line.times) for line in t.shadow_summary()] == [
        ("exp", 2),
        ("log", 1),
        ("mm", 1),
        ("rrelu", 1),
    ]
    assert t.shadow_summary()[0][2:] == (0.25, 2, 0.5, 0.0, 0.25, 2, "")
    assert t.shadow_table().splitlines() == [
        "layer  operation  error in float16  overflow  subnormal  to zero  count",
        "Net.a  exp        0.25              2         -          25.0%    2",
        "Net.a  log        0.5               -         -          -        1",
        "Net.a  mm         0.001             -         -          -        1",
        "not computed a second time:",
        "rrelu in Net.a: it draws random numbers",
    ]
    assert t.remarks() == ["loses most in float16: exp in Net.a, 2 numbers overflow"]


def test_without_a_shadow_there_is_no_table(fake: Any) -> None:
    with pytest.raises(
        ValueError, match=r'this trace has no shadow; open it with unamp.trace\(shadow="float16"\)'
    ):
        trace().shadow_table()
    with pytest.raises(
        ValueError, match="'float32' is no dtype of a shadow; valid: 'float16', 'bfloat16'"
    ):
        trace(shadow="float32")


def test_an_adapter_that_computes_none_is_named(fake: Any) -> None:
    t = recorded(fake, EXACT._replace(framework="fake"))
    assert t.shadow_table().splitlines()[1:] == [
        "not computed a second time:",
        "exp in Net.a: the adapter for fake computes no shadow",
    ]


def test_nested_traces_have_one_shadow(fake: Any) -> None:
    with trace(shadow="float16") as outer, trace() as inner:
        fake.sinks[-1](EXACT._replace(shadow=BAD))
    assert ([r.shadow for r in outer.records], [r.shadow for r in inner.records]) == ([BAD], [None])
    with (
        trace(shadow="float16"),
        pytest.raises(ValueError, match="a trace around this one has shadow='float16'"),
    ):
        trace(shadow="bfloat16").__enter__()
    with trace(shadow="bfloat16") as again:
        pass
    assert again.shadow == "bfloat16"


def test_it_survives_json(fake: Any) -> None:
    t = recorded(
        fake, EXACT, EXACT._replace(shadow=BAD), EXACT._replace(shadow=BAD._replace(error=math.inf))
    )
    again = unamp.Trace.from_json(t.to_json())
    assert (again.records, again.shadow, again.to_json()) == (t.records, "float16", t.to_json())
    assert again.shadow_table() == t.shadow_table()
    data = json.loads(t.to_json())
    del data["shadow"]
    for record in data["records"]:
        del record["shadow"]
    assert unamp.Trace.from_json(json.dumps(data)).shadow is None


def test_the_page_and_the_command_show_it(fake: Any, tmp_path: Any) -> None:
    left = EXACT._replace(layer="<b>", shadow=Shadow("float16", left_out="it draws <i>"))
    t = recorded(fake, EXACT._replace(shadow=BAD._replace(error=math.inf)), left)
    page = t.to_html()
    assert "What float16 loses" in page
    assert 'class="number">inf</td><td data-column="overflow" class="number bad">2</td>' in page
    assert "exp in &lt;b&gt;: it draws &lt;i&gt;" in page
    path = tmp_path / "trace.json"
    path.write_text(t.to_json(), "utf-8")
    shown = invoke("trace", path)
    assert t.shadow_table() in shown.output
    data = json.loads(invoke("trace", path, "--json").output)
    assert data["shadow"]["lines"][0]["error"] == "inf"
