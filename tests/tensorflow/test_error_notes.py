"""An error about dtypes that leaves an O2 region has a note: the policy, and the tensors at hand."""

import pytest
import tensorflow as tf

import unamp
from unamp import Policy, policy_region


def put_together(x):
    doubled = x * 2
    return tf.raw_ops.ConcatV2(values=[doubled, tf.constant(1, tf.int32)], axis=0)


def test_an_error_about_dtypes_names_the_policy_once():
    policy = Policy("O2", "bfloat16")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised, policy_region(policy), policy_region(policy):
        put_together(ones())
    (note,) = raised.value.__notes__
    assert note.startswith(f"unamp: raised inside a region of {policy!r}")
    assert "doubled is bfloat16" in note
    assert unamp.current_policy() is None


def test_other_errors_are_left_alone():
    with pytest.raises(Exception) as raised, policy_region(Policy("O2", "bfloat16")):  # noqa: PT011
        wrong_shape()
    assert not hasattr(raised.value, "__notes__")


def ones():
    return tf.ones([4, 4])


def wrong_shape():
    return tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
