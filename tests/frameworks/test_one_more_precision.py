"""A new low precision is a row of the table: a framework follows it, or refuses it by name; the others go on as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import one_more_precision
import pytest
from installed import place


@pytest.mark.parametrize("framework", one_more_precision.PRODUCTS)
def test_a_new_low_precision(framework: str) -> None:
    place(framework)
    script = Path(one_more_precision.__file__)
    ran = subprocess.run([sys.executable, "-W", "ignore", script, framework], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    known, new = ran.stdout.splitlines()[-2:]
    name = one_more_precision.NEW
    assert known == "bfloat16 bfloat16"
    refused = f"{name} {framework} does not compute in {name} here; it does in float16, bfloat16, float32"
    assert new == (f"{name} {name}" if framework == "jax" else refused)
