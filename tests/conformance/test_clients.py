"""The list of clients has a script for each, and findings of a script are reported."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clients(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "conformance"))
    spec = importlib.util.spec_from_file_location(
        "conformance_clients", ROOT / "conformance/clients.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_client_has_a_script_pins_and_two_of_each_framework_are_the_sample(clients):
    listed = {name: client for name, client in clients.listed().items() if not client.gap}
    for client in listed.values():
        script = clients.SCRIPTS / f"run_{client.script}.py"
        assert len(script.read_text("utf-8").splitlines()) < 60
        assert all("==" in package for package in client.packages)
    scripts = {path.stem for path in clients.SCRIPTS.glob("run_*.py")}
    assert scripts == {f"run_{client.script}" for client in listed.values()}
    sample = Counter(client.framework for client in listed.values() if client.sample)
    assert sample == dict.fromkeys(("torch", "paddle", "mindspore", "tensorflow", "jax"), 2)


def test_a_client_with_a_gap_is_not_installed_and_its_reason_is_its_result(clients, monkeypatch):
    monkeypatch.setattr(clients, "_installed", lambda client, home: pytest.fail("installed"))
    client = clients.Client("c", "torch", ("c==1",), "c", gap="not run: no wheel")
    assert clients.examined(client)["result"] == "not run: no wheel"


def found(**parts):
    usual = {"float32": {}, "unamp": {"difference": 0.01}, "decisions": {"low": 1.0}}
    return usual | parts


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "runs"),
        ({"float32": {"error": "E: no"}}, "fails in float32 too: E: no"),
        ({"unamp": {"error": "E: no"}}, "fails under unamp: E: no"),
        ({"decisions": {"low": None}}, "nothing is multiplied in a low dtype"),
        ({"unamp": {"difference": None}}, "its numbers are not finite"),
        ({"unamp": {"difference": 0.5}}, "it is 0.5 from float32"),
    ],
)
def test_what_is_made_of_a_run(clients, parts, says):
    assert clients.judged(found(**parts)) == says


def test_the_page_is_what_the_results_say(clients):
    known = json.loads(clients.RESULTS.read_text("utf-8"))
    assert clients.PAGE.read_text("utf-8") == clients.page(known)
    listed = clients.listed()
    assert all(name in listed for rows in known.values() for name in rows)
