"""`unamp.explain` tells the rules, their origins, and the way frameworks carry them out."""

from __future__ import annotations

from typing import Any

import pytest

import unamp
from unamp import Policy, Rule, explain
from unamp.adapter import How
from unamp.explaining import lists_behind
from unamp.presets import preset_versions


def test_every_operation_is_explained() -> None:
    policy = Policy(deny="linear")
    explained = explain(policy)
    assert list(explained) == list(unamp.vocabulary())
    assert {op: e.rule for op, e in explained.items()} == policy.rules
    assert explained["linear"] == ("linear", Rule.FP32, "your deny list", {}, {})


def test_how_is_what_the_adapter_says(fake: Any) -> None:
    assert explain(Policy())["linear"].how == {
        ("fake", "cpu"): How.INTERCEPTED,
        ("fake", "gpu"): How.INTERCEPTED,
    }
    assert explain(Policy(enabled=False), "fake", "cpu")["linear"].how == {
        ("fake", "cpu"): How.NATIVE
    }


def test_native_is_explained_for_one_framework_and_device(fake: Any) -> None:
    with pytest.raises(ValueError, match="name a framework"):
        explain(Policy(preset="native"))
    # The fake framework has no AMP of its own, so nothing is touched.
    assert {e.rule for e in explain(Policy(preset="native"), "fake", "cpu").values()} == {
        Rule.UNTOUCHED
    }


def test_versions_whose_lists_differ_are_named() -> None:
    found = explain(Policy(preset="torch-cuda"))
    assert found["rms_norm"].versions == dict.fromkeys(("2.8", "2.10", "2.11"), Rule.WIDEST)
    assert found["layer_norm"].versions == {}
    older = explain(Policy(preset="torch-cuda@2.11"))["rms_norm"]
    assert older.rule is Rule.WIDEST
    assert older.versions == dict.fromkeys(("2.12", "2.13", "2.14", "2.15"), Rule.FP32)
    assert not any(e.versions for e in explain(Policy()).values())


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("O1",), TypeError, "policy must be an unamp.Policy, not str"),
        ((Policy(), "mxnet"), ValueError, "unknown framework 'mxnet'"),
        ((Policy(), None, "cuda"), ValueError, "unknown device 'cuda'; valid: cpu, gpu"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        explain(*arguments)


def test_native_needs_no_device_where_there_is_one(make_adapter: Any) -> None:
    fake = make_adapter("torch")  # presets have torch's own lists
    native = Policy("O1", "bfloat16", preset="native")
    assert {op: e.rule for op, e in explain(native, "torch").items()} == {
        op: e.rule for op, e in explain(native, "torch", "cpu").items()
    }
    fake.has_gpu = True
    with pytest.raises(ValueError, match="depends on the device; name one of: cpu, gpu"):
        explain(native, "torch")


def test_the_lists_behind_native(make_adapter: Any) -> None:
    fake = make_adapter("torch")
    native = Policy("O1", "bfloat16", preset="native")
    newest = preset_versions("torch-cpu")[-1]
    assert (
        lists_behind(native, "torch")
        == lists_behind(native, "torch", "cpu")
        == f"torch-cpu@{newest}"
    )
    assert (
        lists_behind(Policy(), "torch")
        == lists_behind(native.replace(enabled=False), "torch")
        == ""
    )
    fake.has_gpu = True
    with pytest.raises(ValueError, match="depends on the device; name one of: cpu, gpu"):
        lists_behind(native, "torch")


def test_no_lists_are_behind_native_where_a_framework_has_none(fake: Any) -> None:
    assert lists_behind(Policy(preset="native"), "fake", "cpu") == ""
