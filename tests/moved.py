"""Scripts that are migrated run as before. Each framework's folder asks it of its own scripts, in `migrate/scripts`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import unamp
from unamp.adapter.records import OpRecord
from unamp.migrate import Target, migrate_source

__all__ = ["runs_as_before", "scripts"]

HERE = Path(__file__).parent / "migrate" / "scripts"


def scripts(framework: str) -> list[Path]:
    """The scripts of a framework: at least five."""
    found = sorted((HERE / framework).glob("*.py"))
    assert len(found) >= 5
    return found


def runs_as_before(script: Path, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
    """The migrated script has the results of the one before, to the bit, and its operations run under the same policies.

    `around` is what both run inside of.
    """
    text = script.read_text("utf-8")
    before, policies = _run(text, script, around)
    for target in Target:
        done = migrate_source(text, target)
        assert done.text != text
        assert not [finding for finding in done.findings if finding.kind.value in ("by hand", "look here")]
        after, same = _run(done.text, script, around)
        assert len(after) == len(before)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other, strict=True, err_msg=f"{target}")
        assert same == policies, target


def _run(text: str, script: Path, around: Callable[[], AbstractContextManager[object]]) -> tuple[list[Any], list[Any]]:
    names: dict[str, Any] = {"__name__": "script"}
    with unamp.trace() as trace, around():
        exec(compile(text, str(script), "exec"), names)
    return [np.asarray(value) for value in names["RESULT"]], [_decision(record) for record in trace.records]


def _decision(record: OpRecord) -> tuple[Any, ...]:
    """What ran, the rule, the dtype that it computed in, and the policy: the lists that `native` stands for, where it does."""
    policy = record.policy and record.policy.delegated(record.framework, "cpu")
    return record.op, record.rule, record.computed_in, policy if policy is not None and policy.active else None
