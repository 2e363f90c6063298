"""Migrated scripts of MindSpore compute the same bits as before."""

import pytest
from moved import runs_as_before, scripts


@pytest.mark.parametrize("script", scripts("mindspore"), ids=lambda path: path.stem)
def test_a_migrated_script_runs_as_before(script):
    runs_as_before(script, same_layers=False)
