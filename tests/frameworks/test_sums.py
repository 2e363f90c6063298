"""Sums, and draws from given probabilities, of low tensors: every one that an installed framework has."""

from __future__ import annotations

import json

import pytest
import summed
from elsewhere import python
from installed import place

from unamp.vocabulary import vocabulary


def test_every_reduction_is_a_sum_or_known_to_be_none() -> None:
    assert set(vocabulary().groups["reduction"]) - summed.SUMS.keys() == summed.OTHERS


@pytest.mark.parametrize("framework", summed.CATEGORICAL)
def test_sums_do_not_saturate_and_draws_are_not_biased(framework: str) -> None:
    place(framework)
    found = json.loads(python("-W", "ignore", summed.__file__, framework).strip().rpartition("\n")[2])
    assert len(found["sums"]) >= 15
    for op, (value, dtype) in found["sums"].items():
        assert (op, value) == (op, pytest.approx(summed.SUMS[op][1], rel=1e-3))
        assert dtype not in ("float16", "bfloat16"), op
    assert found["draws"]["categorical"] == pytest.approx(summed.MIDDLE, abs=summed.FAR)
    if framework in summed.SELDOM:
        assert found["draws"]["seldom"] == pytest.approx(summed.RARITY, abs=summed.FAR_FROM_IT)
