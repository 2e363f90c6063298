"""Regions of one thread are nobody else's business."""

import os
import threading
import time

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from unamp_mindspore.state import thread

import unamp
from unamp import Policy, policy_region

POLICIES = [
    None, Policy(), Policy("O1", "bfloat16"), Policy("O2"), Policy("O2", "bfloat16"), Policy("O1", deny="matmul"),
    Policy("O3", "bfloat16"), Policy("OD"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _asynchronous():
    # Waiting for every kernel, MindSpore runs some primitives' code in two threads at a time, and crashes without us too.
    mindspore.set_context(pynative_synchronize=False)
    yield
    mindspore.set_context(pynative_synchronize=True)


def test_eight_threads_with_policies_of_their_own():
    seconds = float(os.environ.get("UNAMP_STRESS_SECONDS", "5"))
    a = Tensor(np.random.rand(8, 8).astype(np.float32))
    layer = nn.Dense(8, 8)
    wrong, end = [], time.monotonic() + seconds

    def work(policy):
        try:
            while time.monotonic() < end:
                if policy is None:
                    found = ((a @ a).dtype, ops.add(a, a).dtype, layer(a).dtype)
                    expected = (mindspore.float32,) * 3
                else:
                    with policy_region(policy):
                        found = ((a @ a).dtype, ops.add(a, a).dtype, layer(a).dtype)
                    low = getattr(mindspore, policy.dtype)
                    rules = [policy.decide(op) for op in ("matmul", "add", "linear")]
                    expected = tuple(low if rule is unamp.Rule.LOW else mindspore.float32 for rule in rules)
                if found != expected:
                    wrong.append((policy, found))
        except Exception as error:
            wrong.append((policy, repr(error)))

    threads = [threading.Thread(target=work, args=(policy,)) for policy in POLICIES]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_thread_started_inside_a_region_does_not_inherit_it():
    a = Tensor(np.random.rand(4, 4).astype(np.float32))
    seen = []
    with policy_region(Policy()):
        other = threading.Thread(target=lambda: seen.extend([(a @ a).dtype, thread.plan, unamp.current_policy()]))
        other.start()
        other.join()
        assert (a @ a).dtype == mindspore.float16
    assert seen == [mindspore.float32, None, None]
