"""Processes that share their work; each prints its results in its last line."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

__all__ = ["said_by_ranks", "skipped_together"]


def said_by_ranks(commands: Sequence[Sequence[str]]) -> list[Any]:
    """Return the results of processes that run at the same time.

    Where one fails, the others are ended.
    """
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]

    def said(rank: subprocess.Popen[str]) -> Any:
        output, errors = rank.communicate()
        assert rank.returncode == 0, errors
        return json.loads(output.splitlines()[-1])

    with ThreadPoolExecutor(len(ranks)) as pool:
        found = [pool.submit(said, rank) for rank in ranks]
        first, _ = wait(found, return_when=FIRST_EXCEPTION)
        for rank in ranks:
            rank.kill()
    for each in first:
        each.result()  # raises the first failure, not the errors of the processes that were ended
    return [each.result() for each in found]


def skipped_together(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Check two ranks of six steps: on one of them, the third step overflowed."""
    assert first["ran"] == second["ran"] == [True, True, False, True, True, True]
    assert first["scales"] == second["scales"] == [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0]
    assert first["parameters"] == second["parameters"]
    assert all(map(math.isfinite, first["parameters"]))
