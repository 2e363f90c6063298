"""`unamp.trace` keeps and shows the records that adapters report."""

from __future__ import annotations

import json
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unamp
from unamp import OpRecord, Rule, trace
from unamp.adapter.observing import casts
from unamp.adapter.open_traces import Layers
from unamp.adapter.records import SAMPLE, Gradient, Shadow, Underflow, Values
from unamp.tracing.tables import dtypes, size

LINEAR = OpRecord(
    "linear", "aten::linear", Rule.LOW, ("float32", "float32"), "bfloat16", "bfloat16",
    layer="Net.0", casts=2, cast_bytes=1536, framework="torch", input_shapes=((2, 8), (4, 8)),
    output_shape=(2, 4),
)  # fmt: skip
EMULATED = OpRecord(
    "conv2d", "aten::conv2d", Rule.LOW, ("float32",), "float16", "float16", emulated=True
)
NO_FLOATS = OpRecord("argmax", "aten::argmax", Rule.UNTOUCHED, (), None, None)
UNDERFLOW = (Underflow("float16", 0.5, 0.0), Underflow("bfloat16", 0.0, 0.0))
VALUES = Values((2,), 0, 2.0, 1.5, 5**0.5, (1.0, 2.0), UNDERFLOW)


def test_records_what_adapters_report_while_it_is_open(fake: Any) -> None:
    with trace() as t:
        fake.sinks[0](LINEAR)
        fake.sinks[0](NO_FLOATS)
    assert fake.sinks == []
    assert t.records == [LINEAR, NO_FLOATS]
    assert repr(t) == "<Trace of 2 operations>"


def test_every_framework_is_observed(make_adapter: Callable[..., Any]) -> None:
    one, two = make_adapter("one"), make_adapter("two")
    with trace() as t:
        two.sinks[0](LINEAR)
        one.sinks[0](EMULATED)
    assert t.records == [LINEAR, EMULATED]


def test_nested_traces_each_get_everything_inside_them(fake: Any) -> None:
    with trace() as outer:
        fake.sinks[-1](NO_FLOATS)
        with trace() as inner:
            fake.sinks[-1](LINEAR)  # an adapter reports to the innermost observer
        fake.sinks[-1](EMULATED)
    assert inner.records == [LINEAR]
    assert outer.records == [NO_FLOATS, LINEAR, EMULATED]


def test_an_outer_trace_has_values_whatever_the_inner_one_wants(fake: Any) -> None:
    with trace(values=True) as outer, trace() as between, trace() as inner:
        fake.sinks[-1](LINEAR._replace(values=VALUES))
    assert fake.wants_values == [True, True, True]
    assert outer.records[0].values == VALUES
    assert between.records[0].values is inner.records[0].values is None


def test_a_trace_opened_inside_itself_has_everything_once(fake: Any) -> None:
    t = trace()
    with trace() as around, t, t:
        fake.sinks[-1](LINEAR)
    assert t.records == around.records == [LINEAR]


def test_a_trace_opened_again_inside_another_has_everything_once(fake: Any) -> None:
    t = trace()
    with trace() as around, t, trace() as between:
        with t:
            fake.sinks[-1](LINEAR)
        fake.sinks[-1](EMULATED)
    assert t.records == around.records == between.records == [LINEAR, EMULATED]


def test_another_threads_trace_is_another_threads(fake: Any) -> None:
    def inside() -> None:
        with trace():
            fake.sinks[-1](LINEAR)

    with trace() as mine:
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
    assert mine.records == []


def test_a_trace_that_is_open_in_one_thread_is_not_opened_in_another(fake: Any) -> None:
    shared, said = trace(), []

    def use() -> None:
        for what in (shared.__enter__, lambda: shared.__exit__(None, None, None)):
            with pytest.raises(RuntimeError) as error:
                what()
            said.append(str(error.value))

    with shared:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        fake.sinks[0](LINEAR)
    assert "open in another thread" in said[0]
    assert "not the innermost open trace of this thread" in said[1]
    assert (shared.records, fake.sinks) == ([LINEAR], [])


def test_traces_close_in_reverse_order_and_else_stay_as_they_are(fake: Any) -> None:
    outer, inner = trace(), trace()
    for never_opened in (trace(), outer):
        with pytest.raises(RuntimeError, match="traces close in reverse order"):
            never_opened.__exit__(None, None, None)
    with outer, inner:
        with pytest.raises(RuntimeError, match="traces close in reverse order"):
            outer.__exit__(None, None, None)
        fake.sinks[-1](LINEAR)
    assert outer.records == inner.records == [LINEAR]
    assert fake.sinks == []


def test_it_says_which_frameworks_were_watched(make_adapter: Callable[..., Any]) -> None:
    make_adapter("one"), make_adapter("two")
    with trace() as t:
        pass
    assert t.frameworks["one"] == t.frameworks["two"] == "1.0"


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


def test_where_one_framework_cannot_be_observed_the_others_are_left_alone(
    make_adapter: Callable[..., Any],
) -> None:
    @contextmanager
    def cannot(sink: object, values: bool) -> Any:
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
        "layer  operation  rule       inputs           computed in         result    casts  moved    work    count",  # noqa: E501
        "Net.0  linear     low        float32 float32  bfloat16            bfloat16  4      3.0 KiB  100.0%  2",  # noqa: E501
        "-      conv2d     low        float32          float16 (emulated)  float16   -      -        -       1",  # noqa: E501
        "-      argmax     untouched  -                -                   -         -      -        -       1",  # noqa: E501
    ]
    assert [line.times for line in t.summary()] == [2, 1, 1]


def test_an_empty_table_has_its_head() -> None:
    assert (
        trace().table().split()
        == "layer operation rule inputs computed in result casts moved work count".split()
    )


def test_many_equal_inputs_are_counted() -> None:
    assert dtypes(("float32",) * 7) == "7 x float32"
    assert dtypes(("float32",) * 3) == "float32 float32 float32"
    assert dtypes(("float32", "float16") * 2) == "float32 float16 float32 float16"
    assert [size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_the_first_infinity_is_named(fake: Any) -> None:
    bad = VALUES._replace(nonfinite=2)
    with trace(values=True) as t:
        for record in (
            LINEAR._replace(values=VALUES),
            LINEAR._replace(values=bad, layer="Net.1"),
            EMULATED._replace(values=bad),
        ):
            fake.sinks[0](record)
    assert t.nonfinite == [t.records[1], t.records[2]]
    assert "first result that is not finite: linear in Net.1, operation 2" in t.table().splitlines()


def test_a_trace_without_values_cannot_say_what_was_infinite() -> None:
    with pytest.raises(
        ValueError, match=r"kept no values; open it with unamp.trace\(values=True\)"
    ):
        _ = trace().nonfinite
    with pytest.raises(TypeError, match="values must be True or False, not str"):
        unamp.Trace(values="yes")  # type: ignore[arg-type]


# --- allow entries that never ran -----------------------------------------------------------------


def test_an_allow_entry_that_never_ran_is_named_once(fake: Any) -> None:
    def run() -> unamp.Trace:
        with (
            trace() as t,
            unamp.autocast("cpu", allow=["linear", "softmax", "interpolate", "reshape"]),
        ):
            fake.sinks[0](LINEAR)
            fake.sinks[0](LINEAR._replace(op="upsample_nearest2d"))
        return t

    with pytest.warns(
        unamp.AmpWarning, match="'softmax' is on your allow list and never ran"
    ) as given:
        t = run()
    assert len(given) == 1
    assert given[0].filename == __file__
    # a member of `interpolate` ran; `reshape` computes nothing and is not traced
    assert t.never_ran == ("softmax",)
    assert t.table().splitlines()[-1] == "allowed, but never ran: softmax"
    assert unamp.Trace.from_json(t.to_json()).never_ran == ("softmax",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


def test_an_allow_entry_that_is_registered_no_more_never_ran(fake: Any) -> None:
    registration = unamp.register_operation("mine::gone")
    with (
        pytest.warns(unamp.AmpWarning, match="mine::gone"),
        trace() as t,
        unamp.autocast("cpu", allow=["mine::gone"]),
    ):
        fake.sinks[0](LINEAR)
    registration.undo()
    assert t.never_ran == ("mine::gone",)
    assert "allowed, but never ran: mine::gone" in t.table()


def test_a_collective_entry_of_which_nothing_ran_is_named_by_its_own_name(fake: Any) -> None:
    with (
        pytest.warns(unamp.AmpWarning, match="'interpolate'"),
        trace() as t,
        unamp.autocast("cpu", allow="interpolate"),
    ):
        fake.sinks[0](LINEAR)
    assert t.never_ran == ("interpolate",)


def test_after_an_error_nobody_is_told_what_never_ran(fake: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with suppress(LookupError), trace(), unamp.autocast("cpu", allow="softmax"):
            fake.sinks[0](LINEAR)
            raise LookupError


# --- JSON -----------------------------------------------------------------------------------------


def test_json_has_every_field(fake: Any) -> None:
    lost = Shadow("bfloat16", 0.25, 1, 0.0, 0.5)
    with trace(values=True, shadow="bfloat16") as t:
        fake.sinks[0](
            EMULATED._replace(values=VALUES, input_shapes=((2, 3),), output_shape=(2,), shadow=lost)
        )
    data = json.loads(t.to_json(indent=2))
    assert data["frameworks"].pop("fake") == "1.0"
    assert data == {
        "format": "unamp trace",
        "version": 4,
        "unamp": unamp.__version__,
        "frameworks": {},
        "values": True,
        "shadow": "bfloat16",
        "never_ran": [],
        "policies": [],
        "rank": None,
        "gradients": None,
        "records": [
            {
                "op": "conv2d",
                "native": "aten::conv2d",
                "rule": "low",
                "inputs": ["float32"],
                "compute": "float16",
                "output": "float16",
                "emulated": True,
                "layer": None,
                "casts": 0,
                "cast_bytes": 0,
                "framework": "",
                "policy": None,
                "input_shapes": [[2, 3]],
                "output_shape": [2],
                "equation": None,
                "step": 0,
                "shadow": {
                    "dtype": "bfloat16",
                    "error": 0.25,
                    "overflow": 1,
                    "subnormal": 0.0,
                    "flushed": 0.5,
                    "left_out": "",
                },
                "values": {
                    "shape": [2],
                    "nonfinite": 0,
                    "max_abs": 2.0,
                    "mean": 1.5,
                    "norm": 2.23606798,
                    "sample": [1.0, 2.0],
                    "underflow": [
                        {"dtype": "float16", "subnormal": 0.5, "flushed": 0.0},
                        {"dtype": "bfloat16", "subnormal": 0.0, "flushed": 0.0},
                    ],
                },
            }
        ],
    }


def test_a_trace_holds_the_policies_in_force(fake: Any) -> None:
    outer, inner = (
        unamp.Policy("O2", "bfloat16", allow="softmax"),
        unamp.Policy("O1", preset="paddle"),
    )
    with trace() as t:
        fake.sinks[0](LINEAR)
        with unamp.policy_region(outer):
            fake.sinks[0](LINEAR)
            with unamp.policy_region(inner):
                fake.sinks[0](LINEAR)
            fake.sinks[0](LINEAR)
    assert [record.policy for record in t.records] == [None, outer, inner, outer]
    again = unamp.Trace.from_json(t.to_json())
    assert [record.policy for record in again.records] == [None, outer, inner, outer]
    assert len(json.loads(t.to_json())["policies"]) == 2


def test_a_trace_of_before_is_read_too(fake: Any) -> None:
    with trace(values=True) as t:
        fake.sinks[0](LINEAR._replace(values=VALUES._replace(norm=2.25)))
    data = json.loads(t.to_json()) | {"version": 2}
    (record,) = data["records"]
    for field in ("input_shapes", "output_shape", "equation", "shadow", "step"):
        del record[field]
    del data["shadow"], data["gradients"], data["rank"]
    del record["values"]["underflow"]
    before = t.records[0]._replace(
        input_shapes=(), output_shape=None, values=VALUES._replace(norm=2.25, underflow=())
    )
    assert unamp.Trace.from_json(json.dumps(data)).records == [before]
    del data["policies"], record["policy"]
    assert unamp.Trace.from_json(json.dumps(data | {"version": 1})).records == [before]
    with pytest.raises(ValueError, match="unknown field 'policies'"):
        unamp.Trace.from_json(json.dumps(data | {"version": 1, "policies": []}))


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"level": "O1"},
        [],
        "O1",
        None,
        unamp.Policy().to_data() | {"level": "O9"},
        unamp.Policy().to_data() | {"more": 1},
    ],
)
def test_a_damaged_policy_is_refused(fake: Any, policy: object) -> None:
    with trace() as t, unamp.policy_region(unamp.Policy()):
        fake.sinks[0](LINEAR)
    data = json.loads(t.to_json()) | {"policies": [policy]}
    with pytest.raises(ValueError, match="this trace is damaged"):
        unamp.Trace.from_json(json.dumps(data))
    with pytest.raises(ValueError, match="this trace is damaged"):
        unamp.Trace.from_json(json.dumps(data | {"policies": []}))


def test_a_trace_survives_json(fake: Any) -> None:
    infinite = Values((3,), 2, 1.0, 1.0, 1.0, (math.inf, -math.inf, 1.0))
    with trace(values=True) as t:
        for record in (LINEAR._replace(values=infinite), NO_FLOATS):
            fake.sinks[0](record)
    again = unamp.Trace.from_json(t.to_json())
    assert again.records == t.records
    assert (again.frameworks, again.keeps_values) == (t.frameworks, True)
    assert again.table() == t.table()
    assert again.to_json() == t.to_json()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "this is no trace: not JSON: Expecting value"),
        ("[]", r"this is no trace; Trace.to_json\(\) writes one"),
        (
            '{"format": "unamp trace", "version": 5}',
            r"this trace is of version 5; unamp [\d.]+ reads 1, 2, 3 and 4",
        ),
        (
            '{"format": "unamp trace", "version": 2}',
            "this trace is damaged: the trace: 'frameworks' is missing",
        ),
    ],
)
def test_what_is_no_trace_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unamp.Trace.from_json(text)


def test_the_documented_format_is_the_one_that_is_written() -> None:
    text = (Path(__file__).parents[2] / "docs" / "trace-json.md").read_text("utf-8")
    for field in (
        *OpRecord._fields,
        *Values._fields,
        *Underflow._fields,
        *Shadow._fields,
        *Gradient._fields,
        "format",
        "version",
        "frameworks",
        "never_ran",
        "records",
    ):
        assert f"`{field}`" in text, field


# --- the statistics -------------------------------------------------------------------------------


def test_statistics_are_those_of_the_numbers() -> None:
    numbers = np.random.default_rng(0).normal(size=(30, 7))
    values = Values.of(numbers.shape, [numbers.reshape(-1)])
    assert values.shape == (30, 7)
    assert (values.nonfinite, values.max_abs) == (0, abs(numbers).max())
    assert values.mean == pytest.approx(numbers.mean())
    assert values.norm == pytest.approx(np.linalg.norm(numbers))
    assert len(values.sample) == SAMPLE
    assert values.sample == tuple(numbers.reshape(-1)[[n * 210 // SAMPLE for n in range(SAMPLE)]])


def test_statistics_of_what_is_not_finite_are_those_of_the_rest() -> None:
    values = Values.of((4,), [np.array([1.0, np.inf, np.nan, -2.0]), np.array([np.nan])])
    assert (values.nonfinite, values.max_abs, values.mean) == (3, 2.0, -0.5)
    assert values.norm == pytest.approx(5**0.5)
    assert Values.of((1,), [np.array([np.nan])])[1:5] == (1, 0.0, 0.0, 0.0)
    nothing = (Underflow("float16", 0.0, 0.0), Underflow("bfloat16", 0.0, 0.0))
    assert Values.of((0,), [np.array([])]) == Values((0,), 0, 0.0, 0.0, 0.0, (), nothing)
    assert Values.of((2,), [np.array([1e300, -1e300])]).norm == pytest.approx(2**0.5 * 1e300)
    assert Values.of((2,), [np.zeros(2)]).norm == 0.0


def test_numbers_too_small_for_a_low_dtype_are_counted() -> None:
    # The smallest normal number of float16 is 2**-14, the smallest subnormal 2**-24; half of that
    # rounds to zero.
    numbers = np.array([1.0, 2.0**-14, -(2.0**-15), 2.0**-24, 2.0**-25, -(2.0**-60), 0.0, np.inf])
    float16, bfloat16 = Values.of((8,), [numbers]).underflow
    assert float16 == Underflow("float16", 2 / 8, 2 / 8)
    assert bfloat16 == Underflow("bfloat16", 0.0, 0.0)
    assert Values.of((2,), [np.array([2.0**-127, 2.0**-134])]).underflow_in(
        "bfloat16"
    ) == Underflow("bfloat16", 0.5, 0.5)
    with np.errstate(over="raise", under="ignore"):
        low = numbers[:-1].astype(np.float16)
    assert (low != 0).sum() == 4  # NumPy rounds the same numbers to zero


def test_the_most_underflow_is_named(fake: Any) -> None:
    small = VALUES._replace(underflow=(Underflow("float16", 0.25, 0.5), UNDERFLOW[1]))
    with trace(values=True) as t:
        for record in (
            EMULATED._replace(values=VALUES),
            EMULATED._replace(values=small, layer="Net.1"),
            LINEAR,
        ):
            fake.sinks[0](record)
    assert t.underflow("fp16") == [t.records[1], t.records[0]]
    assert t.underflow("bfloat16") == []
    assert (
        t.table().splitlines()[-1]
        == "most underflow in float16: conv2d in Net.1, 25.0% subnormal and 50.0% zero in it"
    )
    with pytest.raises(ValueError, match="kept no values"):
        trace().underflow("float16")
    with pytest.raises(ValueError, match="'float32' is not a low precision"):
        t.underflow("float32")


# --- layers ---------------------------------------------------------------------------------------


class Layer:
    def __init__(self, **inner: Layer) -> None:
        self.inner = inner

    def named(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        yield prefix, self
        for name, layer in self.inner.items():
            yield from layer.named(f"{prefix}.{name}" if prefix else name)


def test_layers_are_called_by_their_place_in_the_network() -> None:
    leaf = Layer()
    network = Layer(body=Layer(leaf=leaf))
    layers = Layers(Layer.named)
    assert layers.path is None
    layers.enter(network)
    assert layers.path == "Layer"
    layers.enter(leaf)
    assert layers.path == "Layer.body.leaf"
    layers.enter(Layer())  # a layer that no other layer holds under a name
    assert layers.path == "Layer.body.leaf.Layer"
    for expected in ("Layer.body.leaf", "Layer", None):
        layers.leave()
        assert layers.path == expected


def test_layers_keep_nothing_alive() -> None:
    network = Layer(leaf=Layer())
    layers, gone = Layers(Layer.named), weakref.ref(network)
    layers.enter(network)
    layers.leave()
    del network
    assert gone() is None
    assert layers._names == {}


def test_casts_are_counted_by_what_has_to_change() -> None:
    inputs = [("float32", 10), ("bfloat16", 5), ("float64", 3)]
    assert casts(Rule.LOW, inputs, "bfloat16", [("bfloat16", 2)]) == (1, 60)
    assert casts(Rule.LOW, inputs, "bfloat16", [("float32", 2)]) == (2, 72)  # cast back at once
    assert casts(Rule.FP32, inputs, "float32", [("float32", 2)]) == (1, 30)
    assert casts(Rule.WIDEST, inputs, "float32", ()) == (1, 30)
    assert casts(Rule.UNTOUCHED, inputs, "float32", ()) == (0, 0)
    assert casts(Rule.LOW, inputs, None, ()) == (0, 0)
