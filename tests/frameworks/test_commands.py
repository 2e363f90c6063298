"""The commands that ask the installed frameworks, run as a user runs them."""

from __future__ import annotations

import json
from typing import Any

from elsewhere import python


def as_json(*arguments: str) -> Any:
    return json.loads(python("-m", "unamp", *arguments, "--json"))


def test_explain_says_how_a_framework_does_it() -> None:
    explained = as_json("explain", "--framework", "torch", "--device", "cpu", "--dtype", "bfloat16", "--deny", "linear")
    assert set(explained["linear"]["how"]["torch"]) == {"cpu"}
    assert explained["linear"]["how"]["torch"]["cpu"] == "intercepted"


def test_explain_takes_the_preset_native_with_a_framework_and_a_device() -> None:
    native = as_json("explain", "--preset", "native", "--framework", "torch", "--device", "cpu")
    lists = as_json("explain", "--preset", "torch-cpu")
    assert {op: e["rule"] for op, e in native.items()} == {op: e["rule"] for op, e in lists.items()}


def test_doctor_reports_every_framework_with_an_adapter() -> None:
    reports = {report["framework"]: report for report in as_json("doctor")["frameworks"]}
    torch = reports["torch"]
    assert torch["status"] == "ready"
    assert torch["devices"]["cpu"]["bfloat16"] in ("native", "emulated")
    assert set(torch["devices"]) == {"cpu", "gpu"}
