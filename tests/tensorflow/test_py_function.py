"""Python functions that TensorFlow calls follow the policy, and return their stated dtypes."""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp


@pytest.fixture
def seen():
    return []


@pytest.fixture
def square(seen):
    def square(x):
        y = x @ x
        seen.append(y.dtype)
        return y

    return square


def rounded(x, dtype=tf.bfloat16):
    return tf.cast(tf.cast(x, dtype) @ tf.cast(x, dtype), tf.float32)


@pytest.mark.parametrize("graph", [False, True])
def test_a_result_has_the_dtype_that_was_stated(matrix, square, seen, graph):
    def step(x):
        return tf.py_function(square, [x], tf.float32), tf.py_function(
            lambda x: [square(x), 3], [x], [tf.bfloat16, tf.int32]
        )

    with unamp.autocast(dtype="bfloat16"):
        wide, (low, number) = (tf.function(step) if graph else step)(matrix)
    assert seen == [tf.bfloat16] * 2
    assert (wide.dtype, low.dtype, int(number)) == (tf.float32, tf.bfloat16, 3)
    tf.debugging.assert_equal(wide, rounded(matrix))
    tf.debugging.assert_equal(tf.cast(low, tf.float32), wide)


def test_in_a_dataset_it_runs_under_the_policy_that_the_dataset_was_made_in(matrix, square, seen):
    rows = tf.data.Dataset.from_tensors(matrix)
    with unamp.autocast(dtype="float16"):
        inside = rows.map(lambda x: tf.py_function(square, [x], tf.float32))
    outside = rows.map(lambda x: tf.py_function(square, [x], tf.float32))
    with unamp.autocast(dtype="bfloat16"):
        found = next(iter(inside))
        next(iter(outside))
    tf.debugging.assert_equal(found, rounded(matrix, tf.float16))
    assert seen == [tf.float16, tf.float32]


def test_without_a_policy_nothing_is_cast(matrix, square, seen):
    with unamp.autocast(dtype="bfloat16"), unamp.autocast(enabled=False):
        tf.py_function(square, [matrix], tf.float32)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="requested dtype float32 for Tensor with dtype bfloat16",
        ):
            tf.py_function(lambda x: tf.cast(x, tf.bfloat16), [matrix], tf.float32)
    assert seen == [tf.float32]
