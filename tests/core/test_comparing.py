"""`unamp.compare_traces` holds two runs side by side and finds where they differ."""

from __future__ import annotations

import math

import numpy as np
import pytest

import unamp
from unamp import OpRecord, Policy, Rule, Trace, compare_traces
from unamp.adapter.records import Values


def record(op: str, layer: str | None, numbers: object, dtype: str = "float32") -> OpRecord:
    array = np.asarray(numbers, np.float64)
    values = Values.of(array.shape, [array.reshape(-1)])
    return OpRecord(op, op, Rule.LOW, (dtype,), dtype, dtype, layer=layer, values=values)


def trace_of(*records: OpRecord) -> Trace:
    trace = Trace(values=True)
    trace.records.extend(records)
    return trace


def test_operations_are_ranked_by_relative_error() -> None:
    reference = trace_of(
        record("linear", "Net.0", [1.0, 2.0]),
        record("exp", "Net.1", [100.0]),
        record("sum", None, [3.0]),
    )
    other = trace_of(
        record("linear", "Net.0", [1.0, 2.2]),
        record("exp", "Net.1", [101.0]),
        record("sum", None, [3.0]),
    )
    compared = compare_traces(reference, other)
    assert [c.reference.op for c in compared.operations] == ["linear", "exp", "sum"]
    assert [c.error for c in compared.operations] == pytest.approx([0.2 / 5**0.5, 0.01, 0.0])
    assert (compared.only_in_reference, compared.only_in_other) == ([], [])
    row = ["Net.0", "linear", "8.94e-02", "2.70e-06", "beyond", "float32", "float32", "2", "2.2"]
    assert compared.table().splitlines()[1].split() == row
    # the head, one row, the verdict, and both sides of the first difference
    assert len(compared.table(limit=1).splitlines()) == 5


def test_the_error_is_that_of_the_whole_result_within_what_a_sample_can_tell() -> None:
    rng = np.random.default_rng(0)
    exact = rng.normal(size=5000)
    rounded = exact * (1 + rng.normal(scale=1e-2, size=5000))
    (compared,) = compare_traces(
        trace_of(record("exp", None, exact)), trace_of(record("exp", None, rounded))
    ).operations
    true = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
    assert compared.error == pytest.approx(true, rel=0.5)


def test_a_sample_of_zeros_does_not_make_an_infinite_error() -> None:
    exact = np.zeros(6400)
    exact[1::100] = 1.0  # the sample takes none of these positions
    moved = exact.copy()
    moved[0] = 1e-3
    (compared,) = compare_traces(
        trace_of(record("relu", None, exact)), trace_of(record("relu", None, moved))
    ).operations
    assert 0 < compared.error < 0.1


@pytest.mark.parametrize(
    ("exact", "other", "error"),
    [
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1.0], math.inf),
        ([1.0, 1.0], [1.0, math.inf], math.inf),
        ([1.0, math.inf], [1.0, math.inf], 0.0),
        ([[1.0, 2.0]], [[1.0], [2.0]], 0.0),  # another layout: only the norms are compared
        ([[1.0, 2.0]], [[1.0], [3.0]], 0.5),
    ],
)
def test_special_cases(exact: object, other: object, error: float) -> None:
    (compared,) = compare_traces(
        trace_of(record("exp", None, exact)), trace_of(record("exp", None, other))
    ).operations
    assert compared.error == pytest.approx(error)


def test_results_without_floats_are_matched_and_come_last() -> None:
    none = OpRecord("argmax", "argmax", Rule.UNTOUCHED, ("float32",), "float32", None)
    compared = compare_traces(
        trace_of(none, record("exp", None, [1.0])), trace_of(none, record("exp", None, [1.0]))
    )
    assert [c.error for c in compared.operations] == [0.0, None]
    assert compared.table().splitlines()[-2].split()[2] == "-"
    assert compared.within


def test_operations_are_matched_by_layer_and_by_how_often_they_ran() -> None:
    reference = trace_of(
        *(record("linear", layer, [n]) for n, layer in enumerate(("Net.a", "Net.b", "Net.a"), 1))
    )
    other = trace_of(
        *(
            record("linear", layer, [n])
            for layer, n in (("Twin.b", 2), ("Twin.a", 1), ("Twin.a", 3))
        )
    )
    compared = compare_traces(reference, other)
    assert [c.error for c in compared.operations] == [0.0, 0.0, 0.0]
    assert {(c.reference.layer, c.other.layer) for c in compared.operations} == {
        ("Net.a", "Twin.a"),
        ("Net.b", "Twin.b"),
    }


def test_layers_with_other_names_are_matched_in_order() -> None:
    reference = trace_of(
        record("linear", "Net.0", [1]), record("relu", "Net.1", [2]), record("linear", "Net.2", [3])
    )
    other = trace_of(
        record("linear", "Net.dense", [1]),
        record("cast_here", None, [9]),
        record("linear", "Net.dense_1", [3]),
    )
    compared = compare_traces(reference, other)
    assert [(c.reference.layer, c.other.layer) for c in compared.operations] == [
        ("Net.0", "Net.dense"),
        ("Net.2", "Net.dense_1"),
    ]
    assert [r.op for r in compared.only_in_reference] == ["relu"]
    assert [r.op for r in compared.only_in_other] == ["cast_here"]
    assert compared.table().splitlines()[-3:] == [
        "only in the reference, compared with nothing: relu",
        "only in the other, compared with nothing: cast_here",
        "2 operations ran in both; the precision of each explains its error",
    ]


def test_one_operation_more_shifts_nothing() -> None:
    """Operations outside of layers are paired by the size of their numbers, not by position.

    A training step has many products there, in clipping for example.
    """
    step = [
        record("mul", None, [1305.0]),
        record("add", None, [12.0, 3.0]),
        record("mul", None, [0.2247]),
        record("mul", None, [7.0]),
    ]
    other = [record("mul", None, [1000.0]), *step, record("mul", None, [1.0, 2.0])]
    compared = compare_traces(trace_of(*step, *step), trace_of(*other, *step))
    assert [c.error for c in compared.operations] == [0.0] * 8
    assert [float(r.values.sample[0]) for r in compared.only_in_other if r.values] == [1000.0, 1.0]


def test_a_layer_that_runs_many_times_is_paired_in_order_whatever_the_sizes() -> None:
    sizes = 2 ** ((np.arange(6) + 0.49) / 16)
    rounded = sizes * 1.001  # to a sixteenth of a power of two, the next exact size
    traces = [
        trace_of(*(record("linear", "Net.0", [size]) for size in each)) for each in (sizes, rounded)
    ]
    compared = compare_traces(*traces)
    assert max(c.error for c in compared.operations if c.error is not None) == pytest.approx(1e-3)
    assert all(traces[0].records[c.position] is c.reference for c in compared.operations)


def test_shapes_of_another_layout_are_the_same() -> None:
    pictures = np.arange(24.0).reshape(2, 3, 4)
    compared = compare_traces(
        trace_of(record("conv2d", None, pictures)),
        trace_of(record("conv2d", None, pictures.transpose(1, 2, 0))),
    )
    assert [c.error for c in compared.operations] == [0.0]


def test_the_verdict_is_about_what_the_precision_of_each_operation_explains() -> None:
    exact = [
        record("linear", "Net.0", [1.0, 2.0]),
        record("linear", "Net.1", [3.0]),
        record("sub", None, [0.5]),
    ]
    low = [
        record("linear", "Net.0", [1.001, 2.0], "bfloat16"),
        record("linear", "Net.1", [3.03], "bfloat16"),
        record("sub", None, [0.7], "bfloat16"),
    ]
    compared = compare_traces(trace_of(*exact), trace_of(*low))
    assert not compared.within
    assert [c.other.op for c in compared.beyond] == ["sub"]
    by_op = {c.other.layer: c.bound for c in compared.operations}
    assert by_op["Net.0"] == pytest.approx(4 * 2 * 2**-8, rel=1e-6)
    assert by_op["Net.1"] == pytest.approx(4 * 2 * 2**-8 * 2**0.5, rel=1e-6)
    verdict, *sides = compared.remarks()
    assert verdict.startswith(
        "3 operations ran in both; 1 moved further than their precision explains, first sub: "
    )
    assert sides == [
        "  the reference: sub, computed in float32, rule low: no region was open",
        "  the other: sub, computed in bfloat16, rule low: no region was open",
    ]
    assert compare_traces(trace_of(*exact[:2]), trace_of(*low[:2])).within
    assert not compare_traces(
        trace_of(*exact), trace_of(*exact[:2], record("sub", None, [0.5001]))
    ).within


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"other kept no values to compare; open it with unamp.trace\(values=True\)",
    ):
        compare_traces(trace_of(), Trace())
    with pytest.raises(
        TypeError,
        match=r"reference must be an unamp.Trace, not str; read one with Trace.from_json\(text\)",
    ):
        compare_traces("a.json", trace_of())  # type: ignore[arg-type]


def test_traces_from_files_compare_like_those_in_memory() -> None:
    exact, other = (
        trace_of(record("exp", None, [1.0, 3.0])),
        trace_of(record("exp", None, [1.0, 3.1])),
    )
    again = compare_traces(Trace.from_json(exact.to_json()), Trace.from_json(other.to_json()))
    assert again.operations[0].error == pytest.approx(
        compare_traces(exact, other).operations[0].error
    )
    (compared,) = again.operations
    side = {
        "layer": None, "framework": "", "native": "exp", "compute": "float32", "rule": "low",
        "reason": "no region was open"
    }  # fmt: skip
    assert again.to_data() == {
        "within": False,
        "first": {
            "op": "exp",
            "error": compared.error,
            "bound": compared.bound,
            "reference": side,
            "other": side,
        },
        "operations": [
            {
                "op": "exp", "layer": None, "layer_in_other": None,
                "error": compared.error, "bound": compared.bound, "within": False, "position": 0,
                "reference": "float32", "other": "float32",
            }
        ],
        "only_in_reference": [],
        "only_in_other": [],
        "aside": [],
    }  # fmt: skip


def test_an_infinite_error_is_json() -> None:
    data = compare_traces(
        trace_of(record("exp", None, [0.0])), trace_of(record("exp", None, [1.0]))
    ).to_data()
    assert data["operations"][0]["error"] == "inf"
    assert unamp.TraceComparison is type(compare_traces(trace_of(), trace_of()))


def test_what_ran_outside_of_layers_and_regions_is_listed_and_not_compared() -> None:
    """Each framework clips gradients in its own way; a run without regions has no such outside."""
    values = Values((2,), 0, 2.0, 1.5, 5**0.5, (1.0, 2.0))
    low = OpRecord(
        "linear",
        "linear",
        Rule.LOW,
        ("float32",),
        "bfloat16",
        "bfloat16",
        layer="Net.0",
        values=values,
        policy=Policy(),
    )
    clip = OpRecord(
        "stack",
        "stack",
        Rule.UNTOUCHED,
        ("float32",),
        "float32",
        "float32",
        values=values._replace(norm=99.0),
    )
    mine, theirs, plain = (Trace(values=True) for _ in range(3))
    mine.records += [low, clip]
    theirs.records += [low, clip._replace(values=values), clip]
    plain.records += [low._replace(policy=None), clip._replace(values=values)]
    found = compare_traces(mine, theirs)
    assert [c.reference.op for c in found.operations] == ["linear"]
    assert found.within
    assert [record.op for record in found.aside] == ["stack"] * 3
    assert "outside of layers and regions, not compared: stack (3 times)" in found.table()
    assert found.to_data()["aside"] == [{"op": "stack"}] * 3
    against = compare_traces(plain, mine)
    assert [record.op for record in against.only_in_reference] == ["stack"]
