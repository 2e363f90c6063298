"""Migrated scripts run as before.

Each framework's folder tests its own scripts, in `migrate/scripts`.
"""

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
    """Return the scripts of a framework: at least five."""
    found = sorted((HERE / framework).glob("*.py"))
    assert len(found) >= 5
    return found


def runs_as_before(
    script: Path,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    same_layers: bool = True,
) -> None:
    """Check that a migrated script has the same results, bit by bit.

    Its layers compute in the same dtypes. In plain unamp, every operation runs under the same
    policy as in the dialect. All run inside of `around`. Without `same_layers` only results are
    compared, because the framework's own mixed precision inserts layers.
    """
    text = script.read_text("utf-8")
    before, ran = _run(text, script, around)
    policies = {}
    for target in Target:
        done = migrate_source(text, target)
        assert done.text != text
        assert not [
            finding for finding in done.findings if finding.kind.value in ("by hand", "look here")
        ]
        after, records = _run(done.text, script, around)
        assert len(after) == len(before)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other, strict=True, err_msg=f"{target}")
        assert not same_layers or _in_layers(records) == _in_layers(ran)
        policies[target] = [_decision(record) for record in records]
    assert policies[Target.UNAMP] == policies[Target.DIALECTS]


def _run(
    text: str, script: Path, around: Callable[[], AbstractContextManager[object]]
) -> tuple[list[Any], list[OpRecord]]:
    names: dict[str, Any] = {"__name__": "script"}
    with unamp.trace() as trace, around():
        exec(compile(text, str(script), "exec"), names)
    return [np.asarray(value) for value in names["RESULT"]], trace.records


def _in_layers(records: list[OpRecord]) -> list[tuple[Any, ...]]:
    return [
        (record.op, record.computed_in, record.layer)
        for record in records
        if record.layer is not None
    ]


def _decision(record: OpRecord) -> tuple[Any, ...]:
    """Return the operation, the rule, the dtype that it computed in, and the policy.

    The preset `native` is replaced by the lists that it stands for.
    """
    policy = record.policy and record.policy.delegated(record.framework, "cpu")
    return (
        record.op,
        record.rule,
        record.computed_in,
        policy if policy is not None and policy.active else None,
    )
