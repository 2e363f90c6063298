"""Fixtures of Paddle's tests: no test leaves a region, a patch or a program behind."""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import paddle
import pytest
from unamp_paddle import listing, patches
from unamp_paddle.state import thread

sys.path.insert(0, str(Path(__file__).parent))  # for `decorated`, which two files import
warnings.filterwarnings("ignore", module="paddle")


def _patched() -> list[str]:
    looked_at = {
        "paddle._C_ops": type(paddle._C_ops),
        "Tensor.__add__": type(vars(paddle.Tensor)["__add__"]),
        "Tensor.__eq__": type(vars(paddle.Tensor)["__eq__"]),
        "PyLayer.apply": "apply" in vars(paddle.autograd.PyLayer),
        "run_backward": type(paddle.base.core.eager.run_backward),
        "paddle.tensor.math.log": type(paddle.tensor.math.log),
    }
    codes = {code.function.__name__: not code.applied for code in listing.codes().values()}
    return [f"{k}: {v}" for k, v in looked_at.items()] + [k for k, own in codes.items() if not own]


@pytest.fixture
def pickled():
    """Return a function that gives a list with a value's pickled copy.

    The list is empty before Paddle 3.3, where no tensor can be pickled.
    """
    able = paddle.Tensor.__reduce_ex__ is not object.__reduce_ex__
    return lambda value: [pickle.loads(pickle.dumps(value))] if able else []


@pytest.fixture(autouse=True)
def _untouched():
    paddle.seed(0)
    np.random.seed(0)
    before = _patched()
    # What a test builds in the default program is no part of another test's program.
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        yield
    dynamic = paddle.in_dynamic_mode()
    paddle.disable_static()  # a test that stopped in static mode fails alone
    assert dynamic
    assert thread.plan is None
    assert thread.sink is None
    assert patches.installed.open == 0
    assert _patched() == before
