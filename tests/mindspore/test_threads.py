"""A region belongs to the thread that opened it."""

import threading

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from threaded import every_thread_has_its_own_policy


@pytest.fixture(autouse=True)
def _asynchronous():
    # While it waits for every kernel, MindSpore runs some primitives' code in two threads at a
    # time, and crashes, also without unamp.
    mindspore.set_context(pynative_synchronize=False)
    yield
    mindspore.set_context(pynative_synchronize=True)


def test_eight_threads_with_policies_of_their_own():
    a = Tensor(np.random.rand(8, 8).astype(np.float32))
    layer = nn.Dense(8, 8)
    computing = threading.Lock()

    def dtype(compute):
        # MindSpore crashes or hangs, also without unamp, where threads compute at the same time.
        # Regions open and close at any time.
        with computing:
            return str(compute().dtype).lower()

    def dtypes():
        return [dtype(lambda: a @ a), dtype(lambda: ops.add(a, a)), dtype(lambda: layer(a))]

    every_thread_has_its_own_policy(dtypes, rounds=100)
