"""A region belongs to the thread that opened it."""

from __future__ import annotations

import os

import tensorflow as tf
import threaded

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = tf.float32, tf.float16, tf.bfloat16
TAKES_OVER = Policy("O1", "bfloat16", allow=("add", "exp"), deny="softmax")


def report():
    """Return the policy in force at the call."""
    x = tf.ones([4, 4])
    return (
        unamp.current_policy(),
        (x @ x).dtype,
        (x + x).dtype,
        tf.exp(tf.cast(x, BF16)).dtype,
        tf.nn.gelu(tf.cast(x, BF16)).dtype,
    )


NOTHING = (None, F32, F32, BF16, BF16)


def test_a_region_in_another_thread_is_not_seen_here():
    with threaded.open_in_another_thread(TAKES_OVER, report) as seen:
        assert report() == NOTHING
        assert tf.keras.layers.Dense(2, dtype="mixed_float16")(tf.ones([1, 2])).dtype == F16
    assert seen[0][:3] == (TAKES_OVER, BF16, BF16)


def test_a_process_forked_inside_goes_on_inside_and_leaves():
    from tensorflow.python import pywrap_tfe
    from unamp_tensorflow.casting import execute
    from unamp_tensorflow.state import thread

    with policy_region(TAKES_OVER):
        plan, pid = thread.plan, os.fork()
        inside = thread.plan is plan and pywrap_tfe.TFE_Py_FastPathExecute is not execute
    outside = thread.plan is None and pywrap_tfe.TFE_Py_FastPathExecute is execute
    if pid == 0:
        os._exit(0 if inside and outside else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert inside
    assert outside


def test_interleaved_coroutines_each_have_their_own_policy():
    threaded.coroutines_have_their_own_policies(lambda: (tf.ones([2]) + 1).dtype.name)
    assert report() == NOTHING


def stress_policies():
    """Yield policies, each with the dtypes of `matmul`, `add`, `exp`, `softmax` under it."""
    for low in (BF16, F16):
        yield Policy("O1", low.name), [low, F32, F32, F32]
        yield Policy("O1", low.name, preset="paddle"), [low, F32, F32, F32]
        yield Policy("O1", low.name, allow=("add", "exp"), deny="matmul"), [F32, low, low, F32]
        yield Policy("O2", low.name, deny="softmax"), [low, low, low, F32]
        yield Policy("O3", low.name), [low, low, low, low]
    yield Policy(enabled=False), [F32] * 4


def test_threads_entering_computing_and_leaving_different_policies():
    product = tf.function(lambda x, w: tf.matmul(x, w))

    def dtypes(x, w):
        return [tf.matmul(x, w).dtype, (x + x).dtype, tf.exp(x).dtype, tf.nn.softmax(x).dtype]

    def start():
        weight, x = tf.Variable(tf.random.normal([4, 4])), tf.random.normal([4, 4])

        def check(case, inner):
            with tf.GradientTape() as tape, policy_region(case[0]):
                found = dtypes(x, weight)
                with policy_region(inner[0]):
                    nested = dtypes(x, weight)
                again = [product(x, weight).dtype, *dtypes(x, weight)[1:]]
                loss = tf.reduce_sum(tf.cast(tf.matmul(x, weight), F32))
            slope = tape.gradient(loss, weight)
            if found != case[1] or again != case[1] or nested != inner[1]:
                return f"{found} {again}; {inner[0]}: {nested}"
            if slope.dtype != F32:
                return f"gradient in {slope.dtype}"
            left = (
                dtypes(x, x) != [F32] * 4
                or product(x, weight).dtype != F32
                or unamp.current_policy() is not None
            )
            return "still in force after the region" if left else ""

        return check

    threaded.regions_of_all_threads_stay_apart(list(stress_policies()), start)
