"""Recording for gradients in PyNative mode, which MindSpore does for one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from unamp_mindspore.moved import api

#: Held by the thread whose operations are recorded.
recorder = threading.RLock()


@contextmanager
def recording() -> Iterator[None]:
    """Have MindSpore stop recording where the body raises, or it would also record later calls."""
    try:
        yield
    except BaseException:
        api._pynative_executor.clear_res()
        api._pynative_executor.set_grad_flag(False)
        raise
