"""Migrated scripts of Paddle compute the same bits as before.

On a CPU Paddle's own region does nothing outside of one of unamp's. Inside, it follows Paddle's
lists. So every script runs inside a region that casts nothing, which compares Paddle's own region
with its replacement.
"""

import pytest
from moved import runs_as_before, scripts

import unamp


@pytest.mark.parametrize("script", scripts("paddle"), ids=lambda path: path.stem)
def test_a_migrated_script_runs_as_before(script):
    runs_as_before(script, lambda: unamp.autocast(dtype="bfloat16", preset="none"))
