"""Scripts of Paddle's run to the same bits once they are migrated.

On a CPU Paddle's own region does nothing, but inside of one of ours it follows its lists. So all of
them run inside of one that casts nothing, and what is compared is Paddle's own region with what
stands in its place.
"""

import pytest
from moved import runs_as_before, scripts

import unamp


@pytest.mark.parametrize("script", scripts("paddle"), ids=lambda path: path.stem)
def test_a_migrated_script_runs_as_before(script):
    runs_as_before(script, lambda: unamp.autocast(dtype="bfloat16", preset="none"))
