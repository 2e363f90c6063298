"""The ways of conformance leave nothing behind, also after an error."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from mindspore import Tensor
from unamp_mindspore.conformance.ways import ways
from unamp_mindspore.moved import api

from unamp.adapter import Way

WAYS = [way for way in ways() if way.kind in ("recomputed", "transformed")]


def raising(x: Any) -> Any:
    raise ValueError("in the midst of what is recorded")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_nothing_is_recorded_once_a_function_has_raised(way: Way) -> None:
    run: Any = way.run or partial(way.value_and_grad, places=[0])
    with pytest.raises(ValueError, match="in the midst"):
        run(raising, nullcontext, [Tensor([1.0, 2.0])])
    assert not api._pynative_executor.grad_flag()
