"""Islands of float32 on TensorFlow: see `islands`."""

from collections.abc import Callable

import islands
import pytest
import tensorflow  # noqa: F401


@pytest.mark.parametrize("promise", islands.promises("tensorflow"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()
