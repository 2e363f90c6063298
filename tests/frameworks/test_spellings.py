"""The tables of `unamp migrate` agree with the installed packages.

Each name in a row exists or is marked as removed. Each framework is asked in a process of its own.
A new release that removes a name, or changes a signature, fails here.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from unamp.migrate.spellings import table

ASK = """
import importlib, inspect, json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

def found(name):
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            for part in parts[count:]:
                value = getattr(value, part)
        except AttributeError:
            continue
        return value
    return None

def signature(value):
    try:
        return [n for n, p in inspect.signature(value).parameters.items()
                if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except (TypeError, ValueError):
        return None

answers = {}
for name in json.load(sys.stdin):
    value = found(name)
    answers[name] = [value is not None, signature(value) if callable(value) else None]
print()
print(json.dumps(answers))
"""


def asked(names: list[str]) -> dict[str, list]:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.rpartition("\n{")[1].strip() + done.stdout.rpartition("\n{")[2])


@pytest.mark.parametrize("framework", ["torch", "paddle", "mindspore", "tensorflow"])
def test_what_a_row_names_is_there_or_is_marked_as_removed(framework: str) -> None:
    rows = [row for row in table().rows.values() if row.framework == framework]
    answers = asked([row.name for row in rows])
    gone = [row.name for row in rows if not answers[row.name][0] and not row.removed]
    assert not gone, f"not there, and not marked as removed: {gone}"
    back = [row.name for row in rows if answers[row.name][0] and row.removed]
    assert not back, f"there, and marked as removed: {back}"
    for row in rows:
        there, arguments = answers[row.name]
        if row.form is not None and there and arguments is not None:
            assert list(row.form.arguments) == arguments, row.name


def test_apex_is_gone() -> None:
    assert all(row.removed for row in table().rows.values() if row.framework == "apex")
