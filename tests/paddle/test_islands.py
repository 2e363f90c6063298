"""Islands of float32 on Paddle: see `islands`."""

from collections.abc import Callable

import islands
import paddle  # noqa: F401
import pytest


@pytest.mark.parametrize("promise", islands.promises("paddle"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()
