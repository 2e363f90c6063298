"""An error about dtypes that leaves an O2 region has a note: the policy, and the tensors at hand."""

from contextlib import suppress

import mindspore
import pytest
from mindspore.common.api import _pynative_executor

import unamp
from unamp import Policy, policy_region


@pytest.fixture(autouse=True)
def _nothing_comes_late():
    """MindSpore's queues can hold a kernel's error a second time and raise it from the next call, whatever that is."""
    yield
    with suppress(TypeError, ValueError):
        _pynative_executor.sync()


def put_together(x):
    doubled = x * 2
    return mindspore.ops.mul(doubled, mindspore.Tensor([1], mindspore.complex64))


def test_an_error_about_dtypes_names_the_policy_once():
    policy = Policy("O2", "float16")
    with pytest.raises(TypeError) as raised, policy_region(policy), policy_region(policy):
        put_together(ones())
    (note,) = raised.value.__notes__
    assert note.startswith(f"unamp: raised inside a region of {policy!r}")
    assert "doubled is float16" in note
    assert unamp.current_policy() is None


def test_other_errors_are_left_alone():
    with pytest.raises(Exception) as raised, policy_region(Policy("O2", "float16")):  # noqa: PT011
        wrong_shape()
    assert not hasattr(raised.value, "__notes__")


def ones():
    return mindspore.ops.ones((4, 4))


def wrong_shape():
    return mindspore.ops.reshape(ones(), (3, 3)).asnumpy()
