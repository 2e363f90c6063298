"""Migrated scripts of PyTorch compute the same bits as before."""

import pytest
from moved import runs_as_before, scripts

pytestmark = pytest.mark.beside_kernels


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:.*CUDA is not available", "ignore:.*GradScaler is enabled"
)
@pytest.mark.parametrize("script", scripts("torch"), ids=lambda path: path.stem)
def test_a_migrated_script_runs_as_before(script):
    runs_as_before(script)
