"""Recording for gradients in PyNative mode.

MindSpore does it for one thread at a time, and until it is told to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from unamp_mindspore.moved import api

#: Held by the thread whose operations are recorded.
recorder = threading.RLock()


@contextmanager
def recording() -> Iterator[None]:
    """Have MindSpore stop recording where the body raises.

    It would go on by itself, and take later calls for recorded ones.
    """
    try:
        yield
    except BaseException:
        api._pynative_executor.clear_res()
        api._pynative_executor.set_grad_flag(False)
        raise
