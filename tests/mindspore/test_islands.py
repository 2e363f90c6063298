"""Islands of float32 on MindSpore: see `islands`."""

from collections.abc import Callable

import islands
import mindspore  # noqa: F401
import pytest


@pytest.mark.parametrize("promise", islands.promises("mindspore"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()
