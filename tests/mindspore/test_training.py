"""Training with loss scaling comes to the loss of float32 training."""

import pytest
from trained import RUNS, through_an_overflow_and_a_restart
from unamp_conformance.subjects import Subject


@pytest.mark.parametrize(("network", "policy"), RUNS, ids=str)
def test_through_an_overflow_and_a_restart(network, policy):
    through_an_overflow_and_a_restart(Subject("mindspore", "cpu"), network, policy)
