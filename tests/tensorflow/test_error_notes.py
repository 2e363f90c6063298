"""An error about dtypes that leaves an O2 region has a note.

The note names the policy and the tensors of the call.
"""

import noted
import tensorflow as tf


def put_together(x):
    doubled = x * 2
    return tf.raw_ops.ConcatV2(values=[doubled, tf.constant(1, tf.int32)], axis=0)


def test_an_error_about_dtypes_names_the_policy_once():
    error = tf.errors.InvalidArgumentError
    noted.an_error_about_dtypes_names_the_policy_once(
        error, "bfloat16", lambda: put_together(tf.ones([4, 4]))
    )


def test_other_errors_are_left_alone():
    noted.other_errors_are_left_alone(
        "bfloat16", lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
    )
