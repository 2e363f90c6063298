"""An error about dtypes that leaves an O2 region has a note.

The note names the policy and the tensors of the call.
"""

from contextlib import suppress

import mindspore
import noted
import pytest
from mindspore import ops
from mindspore.common.api import _pynative_executor


@pytest.fixture(autouse=True)
def _nothing_comes_late():
    """Clear MindSpore's queues of errors.

    They can hold a kernel's error a second time, and raise it from any later call.
    """
    yield
    with suppress(TypeError, ValueError):
        _pynative_executor.sync()


def put_together(x):
    doubled = x * 2
    return ops.mul(doubled, mindspore.Tensor([1], mindspore.complex64))


def test_an_error_about_dtypes_names_the_policy_once():
    noted.an_error_about_dtypes_names_the_policy_once(
        TypeError, "float16", lambda: put_together(ops.ones((4, 4)))
    )


def test_other_errors_are_left_alone():
    noted.other_errors_are_left_alone(
        "float16", lambda: ops.reshape(ops.ones((4, 4)), (3, 3)).asnumpy()
    )
