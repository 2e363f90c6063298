"""Regions of one thread are nobody else's business."""

import os
import threading
import time
import types

import numpy as np
import paddle
import pytest
from paddle.io import DataLoader, Dataset
from unamp_paddle.state import thread

import unamp
from unamp import Policy, policy_region

POLICIES = [
    None, Policy(), Policy("O1", "bfloat16"), Policy("O2"), Policy("O2", "bfloat16"), Policy("O1", deny="matmul"),
    Policy("O3", "bfloat16"), Policy("OD"),
]  # fmt: skip


@pytest.mark.parametrize("size", [8, 160])  # large tensors are rounded in another way than small ones
def test_eight_threads_with_policies_of_their_own(size):
    a = paddle.rand([size, size])
    layer = paddle.nn.Linear(size, size)
    wrong, end = [], time.monotonic() + float(os.environ.get("UNAMP_STRESS_SECONDS", "2"))

    def work(policy):
        try:
            while time.monotonic() < end:
                if policy is None:
                    found = ((a @ a).dtype, (a + a).dtype, layer(a).dtype)
                    expected = (paddle.float32,) * 3
                else:
                    with policy_region(policy):
                        found = ((a @ a).dtype, (a + a).dtype, layer(a).dtype)
                    low = getattr(paddle, policy.dtype)
                    rules = [policy.decide(op) for op in ("matmul", "add", "linear")]
                    expected = tuple(low if rule is unamp.Rule.LOW else paddle.float32 for rule in rules)
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


class State(Dataset):
    """What the process that loads an item is in."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.array([unamp.current_policy() is None, thread.plan is None, type(paddle._C_ops) is types.ModuleType])


def test_workers_of_a_data_loader_start_without_a_region():
    with policy_region(Policy()):
        rows = [batch.numpy() for batch in DataLoader(State(), batch_size=2, num_workers=2, return_list=True)]
        assert (paddle.rand([2, 2]) @ paddle.rand([2, 2])).dtype == paddle.float16
    assert np.concatenate([row.reshape(-1, 3) for row in rows]).all()
