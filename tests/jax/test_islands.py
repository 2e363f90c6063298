"""Islands of float32 on JAX: see `islands`."""

from collections.abc import Callable

import islands
import jax  # noqa: F401
import pytest


@pytest.mark.parametrize("promise", islands.promises("jax"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()
