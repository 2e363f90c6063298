"""Fixtures of MindSpore's tests: no test leaves a region or a patch behind.

Errors of kernels are reported where they happen.
"""

import gc
import sys
import warnings
from contextlib import chdir, suppress
from pathlib import Path
from types import FunctionType

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore._c_expression import TensorPy
from mindspore.common.api import _pynative_executor
from mindspore.ops import Primitive

sys.path.insert(0, str(Path(__file__).parent))  # for `decorated`
warnings.filterwarnings("ignore", module="mindspore")
# Set before MindSpore computes: later the number of threads has no effect, and each operation of a
# region would wait for other threads, some milliseconds of the processor. A single thread for
# kernels keeps a processor busy, too, while it waits.
mindspore.set_context(pynative_synchronize=True, runtime_num_threads=0, inter_op_parallel_num=1)
# Where NumPy's version differs from the one that MindSpore was compiled with, the first call that
# takes numbers fails.
with suppress(SystemError):
    ops.zeros((1,))

from unamp_mindspore import compiling, listing, patches  # noqa: E402
from unamp_mindspore.state import thread  # noqa: E402

compiling.install()  # this patch stays for good once the adapter is in use


def _patched() -> list[str]:
    # a tensor's inherited methods are C++
    inherited = [
        name for name in listing.methods() if isinstance(vars(TensorPy)[name], FunctionType)
    ]
    codes = [
        code.function.__qualname__
        for code in (*listing.codes().values(), *patches._hooks())
        if code.applied
    ]
    return [
        *inherited,
        *codes,
        str(Primitive.__call__.__code__),
        str(nn.Cell.compile_and_run.__code__),
    ]


@pytest.fixture(autouse=True, scope="module")
def _kept():
    # What MindSpore compiled stays. It collects garbage itself, for each graph, and would look
    # through all of it every time.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path):
    # MindSpore writes files about networks into the current folder.
    with chdir(tmp_path):
        yield


@pytest.fixture(autouse=True)
def _untouched():
    mindspore.set_seed(0)
    np.random.seed(0)
    before = _patched()
    yield
    assert thread.plan is None
    assert thread.sink is None
    assert patches.installed.open == 0
    assert _patched() == before
    assert not _pynative_executor.grad_flag()


@pytest.fixture
def graph_mode():
    """Compile cells in the test."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
