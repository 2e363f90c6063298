"""Scripts of TensorFlow's and Keras' run to the same bits once they are migrated."""

import pytest
from moved import runs_as_before, scripts


@pytest.mark.parametrize("script", scripts("tensorflow"), ids=lambda path: path.stem)
def test_a_migrated_script_runs_as_before(script):
    runs_as_before(script)
