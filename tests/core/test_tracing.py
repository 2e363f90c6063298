"""`unamp.trace`: what adapters report, kept and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

import unamp
from unamp import OpRecord, Rule, trace

LINEAR = OpRecord("linear", "aten::linear", Rule.LOW, ("float32", "float32"), "bfloat16", "bfloat16")
EMULATED = OpRecord("conv2d", "aten::conv2d", Rule.LOW, ("float32",), "float16", "float16", emulated=True)
NO_FLOATS = OpRecord("argmax", "aten::argmax", Rule.UNTOUCHED, (), None, None)


def test_records_what_adapters_report_while_it_is_open(fake: Any) -> None:
    with trace() as t:
        fake.sinks[0](LINEAR)
        fake.sinks[0](NO_FLOATS)
    assert fake.sinks == []
    assert t.records == [LINEAR, NO_FLOATS]


def test_every_framework_is_observed(make_adapter: Callable[..., Any]) -> None:
    one, two = make_adapter("one"), make_adapter("two")
    with trace() as t:
        two.sinks[0](LINEAR)
        one.sinks[0](EMULATED)
    assert t.records == [LINEAR, EMULATED]


def test_nested_traces_each_get_everything_inside_them(fake: Any) -> None:
    with trace() as outer, trace() as inner:
        for sink in fake.sinks:
            sink(LINEAR)
    assert outer.records == inner.records == [LINEAR]


def test_a_trace_can_be_opened_again_and_goes_on(fake: Any) -> None:
    t = trace()
    for _ in range(2):
        with t:
            fake.sinks[0](LINEAR)
    assert t.records == [LINEAR, LINEAR]


def test_an_exception_inside_ends_the_observation(fake: Any) -> None:
    with pytest.raises(LookupError), trace():
        raise LookupError
    assert fake.sinks == []


def test_where_one_framework_cannot_be_observed_the_others_are_left_alone(make_adapter: Callable[..., Any]) -> None:
    @contextmanager
    def cannot(sink: object) -> Any:
        raise unamp.NotExpressible("not here")
        yield

    first, _ = make_adapter("first"), make_adapter("second", observe=cannot)
    with pytest.raises(unamp.NotExpressible, match="not here"), trace():
        pytest.fail("the trace must not open")
    assert first.sinks == []


def test_table_counts_equal_lines(fake: Any) -> None:
    with trace() as t:
        for record in (LINEAR, EMULATED, LINEAR, NO_FLOATS):
            fake.sinks[0](record)
    assert t.table().splitlines() == [
        "operation  rule       inputs           computed in         result    count",
        "linear     low        float32 float32  bfloat16            bfloat16  2",
        "conv2d     low        float32          float16 (emulated)  float16   1",
        "argmax     untouched  -                -                   -         1",
    ]


def test_an_empty_table_has_its_head() -> None:
    assert trace().table().split() == ["operation", "rule", "inputs", "computed", "in", "result", "count"]


def test_json_has_every_field(fake: Any) -> None:
    with trace() as t:
        fake.sinks[0](EMULATED)
    assert json.loads(t.to_json(indent=2)) == [
        {
            "op": "conv2d",
            "native": "aten::conv2d",
            "rule": "low",
            "inputs": ["float32"],
            "compute": "float16",
            "output": "float16",
            "emulated": True,
        }
    ]
