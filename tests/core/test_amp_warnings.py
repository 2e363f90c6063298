"""Warnings about regions come once, at the user's own line.

A region that is opened again does not repeat its warning.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from elsewhere import ended

import unamp
from unamp import AmpHint, AmpWarning, Policy, amp_warnings, policy_region
from unamp.adapter import registry


def open_and_close(*regions: Any) -> None:
    for region in regions:
        with region:
            pass


def test_a_dtype_that_is_many_times_slower_is_named_once(make_adapter: Callable[..., Any]) -> None:
    make_adapter(slow={"float16": 28.0})
    with pytest.warns(
        AmpWarning,
        match="on a CPU fake is about 28 times slower in float16 than in float32; bfloat16",
    ) as given:
        open_and_close(
            *(unamp.autocast(dtype="float16", preset=preset) for preset in ("unamp", "paddle"))
        )
    assert [warning.filename for warning in given] == [__file__]


def test_where_the_other_dtype_is_as_slow_only_float32_is_advised(
    make_adapter: Callable[..., Any],
) -> None:
    make_adapter(slow={"float16": 28.0, "bfloat16": 22.0})
    with (
        pytest.warns(AmpWarning, match="slower in bfloat16 than in float32; float32 is faster"),
        unamp.autocast("cpu", "bfloat16"),
    ):
        pass


@pytest.mark.parametrize(
    "region",
    [
        lambda: policy_region(Policy("O1", "bfloat16")),
        lambda: policy_region(Policy("O0", "float16")),
        lambda: policy_region(Policy("O1", "float16", enabled=False)),
        # the fake framework has no AMP of its own
        lambda: policy_region(Policy("O1", "float16", preset="native")),
        lambda: unamp.Region(Policy("O1", "float16"), device="gpu"),
    ],
)
def test_what_is_not_slow_is_not_warned_of(
    region: Callable[[], Any], make_adapter: Callable[..., Any]
) -> None:
    make_adapter(slow={"float16": 28.0, "bfloat16": amp_warnings.SLOW - 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with region():
            pass


def test_with_a_gpu_there_nobody_knows_where_tensors_will_be(
    make_adapter: Callable[..., Any],
) -> None:
    make_adapter(slow={"float16": 28.0}, has_gpu=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with policy_region(Policy()):
            pass
    with pytest.warns(AmpWarning, match="28 times slower"), unamp.autocast("cpu", "float16"):
        pass


def test_opening_a_region_again_asks_nothing(make_adapter: Callable[..., Any]) -> None:
    asked = []
    fake = make_adapter(slowdown=lambda device, dtype: asked.append(dtype) or 1.0)
    region = unamp.Region(Policy())
    for _ in range(3):
        with region:
            assert fake.in_force
    assert asked == ["float16"]


def test_the_category_silences(make_adapter: Callable[..., Any]) -> None:
    make_adapter(slow={"float16": 28.0})
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=unamp.AmpWarning)
        with policy_region(Policy()):
            pass
    assert given == []


def test_a_warning_made_an_error_leaves_no_region_open(make_adapter: Callable[..., Any]) -> None:
    fake = make_adapter(slow={"float16": 28.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AmpWarning), policy_region(Policy()):
            pytest.fail("the region must not open")
    assert fake.in_force == []
    assert unamp.current_policy() is None


def test_what_could_be_faster_is_a_hint_given_once(make_adapter: Callable[..., Any]) -> None:
    make_adapter(faster=lambda: "python -m fake builds it")
    with pytest.warns(AmpHint, match="python -m fake builds it") as given:
        open_and_close(
            *(unamp.autocast(dtype="float16", preset=preset) for preset in ("unamp", "paddle"))
        )
    assert [warning.filename for warning in given] == [__file__]


@pytest.mark.parametrize(("how", "level"), [(None, "O1"), ("build it", "O0")])
def test_no_hint_where_there_is_nothing_to_say(
    how: str | None, level: str, make_adapter: Callable[..., Any]
) -> None:
    make_adapter(faster=lambda: how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_and_close(policy_region(Policy(level)))


def test_hints_are_silenced_by_their_own_category(make_adapter: Callable[..., Any]) -> None:
    make_adapter(faster=lambda: "build it", slow={"float16": 28.0})
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=unamp.AmpHint)
        open_and_close(policy_region(Policy()))
    assert [warning.category for warning in given] == [AmpWarning]


# --- regions that cover nothing -------------------------------------------------------------------


@pytest.fixture
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_in_use", ())
    monkeypatch.setattr(registry, "_waiting", ())
    for name in amp_warnings._FRAMEWORKS:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("nothing_imported")
def test_a_region_without_any_framework() -> None:
    with pytest.warns(
        AmpWarning, match="a region changed nothing: no framework was imported"
    ) as given:
        open_and_close(policy_region(Policy()), policy_region(Policy()))
    assert [warning.filename for warning in given] == [__file__]


@pytest.mark.usefixtures("nothing_imported")
def test_a_region_around_a_framework_without_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    with (
        pytest.warns(AmpWarning, match="no adapter is installed for jax; `unamp doctor`"),
        policy_region(Policy()),
    ):
        pass


@pytest.mark.usefixtures("nothing_imported")
def test_a_region_in_which_a_framework_is_imported(fake_class: Any) -> None:
    with (
        pytest.warns(AmpWarning, match="late was imported inside a region, which did not cover it"),
        policy_region(Policy()),
    ):
        registry.register(fake_class("late"))


@pytest.mark.usefixtures("nothing_imported")
def test_a_region_that_was_to_change_nothing_or_that_ended_in_an_error_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with policy_region(Policy(enabled=False)):
            pass
        with pytest.raises(LookupError), policy_region(Policy()):
            raise LookupError


def test_in_a_process_of_its_own() -> None:
    code = """
import unamp
with unamp.autocast():
    pass
"""
    done = ended("-c", code)
    assert done.code == 0
    assert "AmpWarning: a region changed nothing" in done.stderr
