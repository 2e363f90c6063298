"""The commands that ask the installed frameworks answer as a user runs them."""

from __future__ import annotations

import json
from typing import Any

from commanded import invoke
from elsewhere import in_turn


def as_json(*commands: tuple[str, ...]) -> list[Any]:
    """Return the output of commands, run in one process that imports the frameworks they need."""
    return [
        json.loads(done.stdout)
        for done in in_turn(*(("-m", "unamp", *words, "--json") for words in commands))
    ]


def test_explain_says_how_a_framework_does_it_and_takes_the_preset_native() -> None:
    on_cpu = ("explain", "--framework", "torch", "--device", "cpu")
    explained, native = as_json(
        (*on_cpu, "--dtype", "bfloat16", "--deny", "linear"), (*on_cpu, "--preset", "native")
    )
    assert set(explained["linear"]["how"]["torch"]) == {"cpu"}
    assert explained["linear"]["how"]["torch"]["cpu"] == "intercepted"
    lists = json.loads(invoke("explain", "--preset", "torch-cpu", "--json").stdout)
    assert {op: e["rule"] for op, e in native.items()} == {op: e["rule"] for op, e in lists.items()}


def test_doctor_reports_every_framework_with_an_adapter() -> None:
    reports = {report["framework"]: report for report in as_json(("doctor",))[0]["frameworks"]}
    torch = reports["torch"]
    assert torch["status"] == "ready"
    assert torch["devices"]["cpu"]["bfloat16"] in ("native", "emulated")
    assert set(torch["devices"]) == {"cpu", "gpu"}
