"""Regions belong to their thread."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = tf.float32, tf.float16, tf.bfloat16
TAKES_OVER = Policy("O1", "bfloat16", allow=("add", "exp"), deny="softmax")


def report():
    """Return the policy that is in force where this is called."""
    x = tf.ones([4, 4])
    return (
        unamp.current_policy(),
        (x @ x).dtype,
        (x + x).dtype,
        tf.exp(tf.cast(x, BF16)).dtype,
        tf.nn.gelu(tf.cast(x, BF16)).dtype,
    )


NOTHING = (None, F32, F32, BF16, BF16)
ROUNDS = int(os.environ.get("UNAMP_STRESS_ROUNDS", "100"))


def test_a_thread_started_inside_a_region_does_not_inherit_it():
    with policy_region(TAKES_OVER), ThreadPoolExecutor(1) as pool:
        assert pool.submit(report).result() == NOTHING
        assert report()[:3] == (TAKES_OVER, BF16, BF16)
    assert report() == NOTHING


def test_a_region_in_another_thread_is_not_seen_here():
    opened, done = threading.Event(), threading.Event()

    def other():
        try:
            with policy_region(TAKES_OVER):
                opened.set()
                done.wait()
        finally:
            opened.set()

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait()
    try:
        assert report() == NOTHING
        assert tf.keras.layers.Dense(2, dtype="mixed_float16")(tf.ones([1, 2])).dtype == F16
    finally:
        done.set()
        thread.join()


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
    async def run(policy, expected):
        @policy_region(policy)
        async def steps():
            found = []
            for _ in range(5):
                found.append((tf.ones([2]) + 1).dtype)
                await asyncio.sleep(0)
            return found

        assert await steps() == [expected] * 5

    async def both():
        await asyncio.gather(
            run(Policy("O1", "bfloat16", allow="add"), BF16),
            run(Policy("O1", "float16", allow="add"), F16),
            run(Policy(enabled=False), F32),
        )

    asyncio.run(both())
    assert report() == NOTHING


def stress_policies():
    """Policies with the dtypes of `matmul`, `add`, `exp`, `softmax` that each must give."""
    for low in (BF16, F16):
        yield Policy("O1", low.name), [low, F32, F32, F32]
        yield Policy("O1", low.name, preset="paddle"), [low, F32, F32, F32]
        yield Policy("O1", low.name, allow=("add", "exp"), deny="matmul"), [F32, low, low, F32]
        yield Policy("O2", low.name, deny="softmax"), [low, low, low, F32]
        yield Policy("O3", low.name), [low, low, low, low]
    yield Policy(enabled=False), [F32] * 4


def test_threads_entering_computing_and_leaving_different_policies():
    cases = list(stress_policies())
    problems, rounds = [], [0] * 8
    product = tf.function(lambda x, w: tf.matmul(x, w))

    def dtypes(x, w):
        return [tf.matmul(x, w).dtype, (x + x).dtype, tf.exp(x).dtype, tf.nn.softmax(x).dtype]

    def worker(number):
        try:
            weight, x = tf.Variable(tf.random.normal([4, 4])), tf.random.normal([4, 4])
            for policy, expected in itertools.islice(itertools.cycle(cases), number * 3, number * 3 + ROUNDS):
                if problems:
                    break
                with tf.GradientTape() as tape, policy_region(policy):
                    found = dtypes(x, weight)
                    other, other_expected = cases[(number + rounds[number]) % len(cases)]
                    with policy_region(other):
                        nested = dtypes(x, weight)
                    again = [product(x, weight).dtype, *dtypes(x, weight)[1:]]
                    loss = tf.reduce_sum(tf.cast(tf.matmul(x, weight), F32))
                slope = tape.gradient(loss, weight)
                if found != expected or again != expected or nested != other_expected:
                    problems.append(f"{policy}: {found} {again}; {other}: {nested}")
                if slope.dtype != F32:
                    problems.append(f"{policy}: gradient in {slope.dtype}")
                if dtypes(x, x) != [F32] * 4 or product(x, weight).dtype != F32 or unamp.current_policy() is not None:
                    problems.append(f"{policy}: still in force after the region")
                rounds[number] += 1
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert rounds == [ROUNDS] * 8
