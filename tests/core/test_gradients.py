"""Traces keep gradients, and show them in the table, the file and the page.

Steps and ranks that a trace leaves out are tested, too.
"""

from __future__ import annotations

import gc
import json
import math
import weakref
from typing import Any

import numpy as np
import pytest
from commanded import invoke

import unamp
from unamp import OpRecord, Rule, trace
from unamp.adapter.open_traces import Layers, Observer, parameter_hook
from unamp.adapter.records import Gradient

LINEAR = OpRecord(
    "linear",
    "n",
    Rule.UNTOUCHED,
    ("float32",),
    "float32",
    "float32",
    layer="Net.a",
    output_shape=(4,),
)
EXP = LINEAR._replace(op="exp", layer="Net.b")
SMALL = np.array([1e-6, 1e-9, 0.0, 1.0])


def recorded(fake: Any, *found: tuple[OpRecord, Any], **arguments: Any) -> unamp.Trace:
    """Return a trace with these operations, each with a gradient of these numbers.

    The last operation's gradient comes first, as in a backward pass.
    """
    with trace(gradients=True, **arguments) as t:
        hooks = [(fake.sinks[-1](record), numbers) for record, numbers in found]
        for hook, numbers in reversed(hooks):
            if isinstance(numbers, str):
                hook.leave_out(numbers)
            else:
                hook.arrived("float32", numbers.shape, numbers.astype("float64"))
    return t


def test_a_gradient_says_what_a_low_dtype_would_lose() -> None:
    found = Gradient.of("float32", SMALL.shape, SMALL)
    assert (found.dtype, found.zeros) == ("float32", 0.25)
    assert found.values is not None
    assert found.values.underflow_in("float16") == ("float16", 0.25, 0.25)
    assert Gradient.of("float32", (0,), SMALL[:0]).zeros == 0.0


def test_each_is_linked_to_its_operation(fake: Any) -> None:
    t = recorded(fake, (LINEAR, SMALL), (EXP, np.ones(3)))
    assert [(each.record, each.values.shape) for each in t.gradients if each.values] == [
        (1, (3,)),
        (0, (4,)),
    ]


def test_nothing_is_asked_for_without_gradients(fake: Any) -> None:
    with trace(values=True) as t:
        assert fake.sinks[-1](LINEAR) is None
    for ask in (lambda: t.nonfinite_gradients, t.gradient_summary, t.gradient_table):
        with pytest.raises(
            ValueError, match=r"kept no gradients; open it with unamp.trace\(gradients=True\)"
        ):
            ask()
    with pytest.raises(TypeError, match="gradients must be True or False, not int"):
        trace(gradients=1)  # type: ignore[arg-type]


def test_traces_inside_each_other_have_places_of_their_own(fake: Any) -> None:
    with trace(gradients=True) as outer:
        fake.sinks[-1](EXP)
        with trace(gradients=True) as inner, trace() as innermost:
            hook = fake.sinks[-1](LINEAR)
            hook.arrived("float32", (4,), SMALL)
        assert hook.wanted
        hook.arrived("float32", (4,), SMALL)
    assert [[each.record for each in t.gradients] for t in (outer, inner, innermost)] == [
        [1, 1],
        [0],
        [],
    ]


def test_what_comes_after_the_trace_is_dropped(fake: Any) -> None:
    undone: list[str] = []
    with trace(gradients=True) as outer:
        with trace(gradients=True) as inner:
            hook = fake.sinks[-1](LINEAR)
            hook.when_closed(lambda: undone.append("hook"))
        assert undone == []  # the outer trace still needs the hook
    assert undone == ["hook"]
    assert not hook.wanted
    hook.arrived("float32", (4,), SMALL)
    with inner:
        hook.arrived("float32", (4,), SMALL)  # opened again: the result is from before
    assert outer.gradients == inner.gradients == []


def test_a_hook_that_is_left_over_holds_no_trace(fake: Any) -> None:
    with trace(gradients=True) as t:
        hook = fake.sinks[-1](LINEAR)
    gone = weakref.ref(t)
    del t
    gc.collect()
    assert gone() is None
    assert not hook.wanted


def test_an_adapter_that_follows_none_is_named(fake: Any) -> None:
    with trace(gradients=True) as t:
        Observer("fake", fake.sinks[-1], False, Layers(lambda network: ())).report(
            LINEAR, lambda: None
        )
    assert t.gradient_table().splitlines()[1:] == [
        "gradients that are not known:",
        "linear in Net.a: the adapter for fake follows no gradients of it",
    ]
    assert "no gradient of a result was seen" in t.table()


def test_the_worst_stands_first(fake: Any) -> None:
    t = recorded(
        fake,
        (LINEAR, SMALL),
        (LINEAR._replace(op="mm", layer=None), np.ones(4)),
        (EXP, np.array([math.inf, math.nan, 1.0, 2.0])),
        (EXP, np.ones(4)),
        (LINEAR._replace(op="sum"), "it is a test"),
    )
    assert t.gradient_table().splitlines() == [
        "layer  operation  gradient  largest  zeros  subnormal in float16  to zero  not finite  count",  # noqa: E501
        "Net.b  exp        float32   2        -      -                     -        2           2",
        "Net.a  linear     float32   1        25.0%  25.0%                 25.0%    -           1",
        "-      mm         float32   1        -      -                     -        -           1",
        "gradients that are not known:",
        "sum in Net.a: it is a test",
    ]
    assert t.remarks() == [
        "first gradient that is not finite: of layer Net.b, operation 3 (exp); "
        "the one before it was of layer Net.b, operation 4 (exp)",
        "gradients too small for float16, by layer: Net.a 50.0%",
    ]
    assert [each.record for each in t.nonfinite_gradients] == [2]
    assert [line.subnormal for line in t.gradient_summary("bfloat16")] == [0.0] * 4
    with pytest.raises(ValueError, match="'float32' is not a low precision"):
        t.gradient_table("float32")


def test_a_parameter_is_followed_once_and_belongs_to_the_step_of_its_gradient(fake: Any) -> None:
    weight = object()
    with trace(gradients=True) as outer:
        assert parameter_hook("Net.a.weight", weight) is not None
        assert parameter_hook("Net.a.weight", weight) is None
        with trace(gradients=True, steps=[1]) as inner:
            assert parameter_hook("Net.a.weight", weight) is None  # step 0 is not recorded
            inner.step()
            hook = parameter_hook("Net.a.weight", weight)
            assert hook is not None
            hook.arrived("float32", (4,), SMALL)
            inner.step()
            assert not hook.wanted
            hook.arrived("float32", (4,), SMALL)
        told_once = parameter_hook("Net.a.weight")
        assert told_once is not None
        told_once.arrived("float32", (4,), SMALL)
    assert [(each.parameter, each.record, each.step) for each in inner.gradients] == [
        ("Net.a.weight", None, 1)
    ]
    assert [(each.parameter, each.step) for each in outer.gradients] == [("Net.a.weight", 0)]
    assert parameter_hook("Net.a.weight", weight) is None
    with trace(values=True):
        assert parameter_hook("Net.a.weight", weight) is None


def test_a_parameter_stands_in_the_table_by_its_layer(fake: Any) -> None:
    with trace(gradients=True) as t:
        result = fake.sinks[-1](LINEAR)
        for name, numbers in (("Net.a.weight", SMALL), ("scale", np.array([math.nan, 0.0]))):
            hook = parameter_hook(name)
            assert hook is not None
            hook.arrived("float32", numbers.shape, numbers)
        hook.leave_out("it is a test")
        result.arrived("float32", (2,), np.array([1.0, math.inf]))
    assert t.gradient_table().splitlines() == [
        "layer         operation  gradient  largest  zeros  subnormal in float16  to zero  not finite  count",  # noqa: E501
        "scale         parameter  float32   0        50.0%  -                     -        1           1",  # noqa: E501
        "Net.a         linear     float32   1        -      -                     -        1           1",  # noqa: E501
        "Net.a.weight  parameter  float32   1        25.0%  25.0%                 25.0%    -           1",  # noqa: E501
        "gradients that are not known:",
        "parameter scale: it is a test",
    ]
    assert t.remarks() == [
        "first gradient that is not finite: of parameter scale, the first of all",
        "gradients too small for float16, by layer: Net.a 33.3%",
    ]
    assert [(line.layer, line.op) for line in t.gradient_summary()][::2] == [
        (None, ""),
        ("Net.a", ""),
    ]


def test_a_loss_scale_is_told(fake: Any) -> None:
    with trace() as outer, trace(gradients=True) as t:
        before, after = fake.sinks[-1](LINEAR), fake.sinks[-1](EXP)
        before.arrived("float32", (4,), SMALL)
        unamp.GradScaler(init_scale=8.0).scale(fake.tensor("float32", 1.0))
        after.arrived("float32", (4,), SMALL)
    assert [each.scale for each in t.gradients] == [None, 8.0]
    assert "gradients are multiplied by the loss scale, 8" in t.table()
    assert outer.gradients == []


# --- steps and ranks ------------------------------------------------------------------------------


def test_the_chosen_steps_are_recorded(fake: Any) -> None:
    with trace(steps=range(1, 3), gradients=True) as t:
        hooks = []
        for _ in range(4):
            hooks.append(fake.sinks[-1](LINEAR))
            t.step()
    assert [record.step for record in t.records] == [1, 2]
    assert [hook is not None for hook in hooks] == [False, True, True, False]
    with pytest.raises(RuntimeError, match=r"step\(\) ends a step of an open trace"):
        t.step()


def test_nothing_is_computed_for_a_step_that_nobody_records(fake: Any) -> None:
    with trace(values=True, steps=[1]) as t:
        observer = Observer("fake", fake.sinks[-1], True, Layers(lambda network: ()))
        observer.report(LINEAR, lambda: pytest.fail("a result was looked at"))
        with trace(values=True) as inner:
            observer.report(LINEAR, lambda: None)
        t.step()
        observer.report(EXP, lambda: None)
        with trace(steps=[7]):
            observer.report(LINEAR, lambda: None)
    assert ([r.op for r in t.records], len(inner.records)) == (["exp", "linear"], 0)


def test_an_outer_trace_records_in_a_step_that_an_inner_one_leaves_out(fake: Any) -> None:
    with trace() as outer, trace(steps=[1]) as inner:
        Observer("fake", fake.sinks[-1], False, Layers(lambda network: ())).report(
            LINEAR, lambda: None
        )
        inner.step()
    assert (len(outer.records), len(inner.records)) == (1, 0)


def test_steps_that_never_came_are_warned_of(fake: Any) -> None:
    with (
        pytest.warns(unamp.AmpWarning, match=r"recorded nothing: its step\(\) was called 0 times"),
        trace(steps=[3]),
    ):
        fake.sinks[-1](LINEAR)


@pytest.mark.parametrize(
    ("variable", "rank"), [("RANK", 1), ("PADDLE_TRAINER_ID", 2), ("RANK_ID", 0), ("RANK", -1)]
)
def test_a_launcher_tells_the_rank(
    fake: Any, monkeypatch: pytest.MonkeyPatch, variable: str, rank: int
) -> None:
    monkeypatch.setenv(variable, str(rank))
    with trace(ranks=[0, 2]) as t:
        fake.sinks[-1](LINEAR)
    assert t.rank == max(rank, 0)
    assert len(t.records) == (t.rank in (0, 2))
    assert ("this is rank 1, which was not asked to record" in t.table()) is (rank == 1)


def test_a_framework_tells_the_rank_before_a_launcher(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    fake.rank = lambda: 3
    with trace(ranks=range(3, 4)) as t:
        fake.sinks[-1](LINEAR)
    assert (t.rank, len(t.records)) == (3, 1)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (3, TypeError, "must be several whole numbers, as in steps=range(10, 20); not 3"),
        ("3", TypeError, "must be several whole numbers, as in steps=range(10, 20); not '3'"),
        ([1, 2.0], TypeError, "must be whole numbers, as in steps=range(10, 20); 2.0 is none"),
        ([True], TypeError, "must be whole numbers, as in steps=range(10, 20); True is none"),
        ([], ValueError, "must be at least one whole number, each 0 or more"),
        (range(5, 5), ValueError, "must be at least one whole number, each 0 or more"),
        (range(-1, 5), ValueError, "must be at least one whole number, each 0 or more"),
    ],
)
def test_bad_steps_and_ranks_are_refused(given: Any, error: type[Exception], says: str) -> None:
    for name in ("steps", "ranks"):
        with pytest.raises(error) as raised:
            trace(**{name: given})
        expected = says.replace("steps=range(10, 20)", "ranks=[0]") if name == "ranks" else says
        assert f"{name} {expected}" in str(raised.value)


# --- the file, the page, the command --------------------------------------------------------------


def test_it_survives_json(fake: Any) -> None:
    t = recorded(
        fake,
        (LINEAR, SMALL),
        (EXP, np.array([math.nan])),
        (EXP, "it is a test"),
        steps=[0],
        ranks=[0],
    )
    again = unamp.Trace.from_json(t.to_json())
    assert (again.to_json(), again.gradient_table(), again.rank) == (
        t.to_json(),
        t.gradient_table(),
        0,
    )
    assert [each.record for each in again.gradients] == [2, 1, 0]
    data = json.loads(t.to_json())
    del data["gradients"][0]["parameter"], data["gradients"][0]["step"]
    assert unamp.Trace.from_json(json.dumps(data)).to_json() == t.to_json()
    del data["gradients"], data["rank"], data["records"][0]["step"]
    assert not unamp.Trace.from_json(json.dumps(data)).keeps_gradients


def test_the_page_and_the_command_show_it(fake: Any, tmp_path: Any) -> None:
    t = recorded(
        fake,
        (LINEAR, SMALL),
        (EXP, np.array([math.inf])),
        (LINEAR._replace(layer="<b>"), "it is <i>"),
    )
    page = t.to_html()
    assert ">Gradients</h2>" in page
    assert (
        '<p class="bad">First gradient that is not finite: of layer Net.b, operation 2 (exp)'
        in page
    )
    assert "linear in &lt;b&gt;: it is &lt;i&gt;" in page
    path = tmp_path / "trace.json"
    path.write_text(t.to_json(), "utf-8")
    shown = invoke("trace", path)
    assert t.gradient_table() in shown.output
    assert "gradients too small for float16, by layer: Net.a 50.0%" in shown.output
    data = json.loads(invoke("trace", path, "--json").output)
    assert data["gradients"][1]["flushed"] == 0.25


def test_a_largest_number_that_is_infinite_is_printed_as_json(fake: Any, tmp_path: Any) -> None:
    data = json.loads(recorded(fake, (LINEAR, SMALL)).to_json())
    data["gradients"][0]["values"]["max_abs"] = "inf"
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(data), "utf-8")
    found = invoke("trace", path, "--json")
    assert json.loads(found.output)["gradients"][0]["max_abs"] == "inf"
