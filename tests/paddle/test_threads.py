"""A region belongs to the thread that opened it."""

import types

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset
from threaded import every_thread_has_its_own_policy
from unamp_paddle.state import thread

import unamp
from unamp import Policy, policy_region


def test_eight_threads_with_policies_of_their_own():
    a = paddle.rand([8, 8])
    layer = paddle.nn.Linear(8, 8)

    def dtypes():
        return [str(each.dtype).removeprefix("paddle.") for each in (a @ a, a + a, layer(a))]

    every_thread_has_its_own_policy(dtypes, rounds=200)


class State(Dataset):
    """Items that tell whether the process that loads them has a region."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.array(
            [
                unamp.current_policy() is None,
                thread.plan is None,
                type(paddle._C_ops) is types.ModuleType,
            ]
        )


def test_workers_of_a_data_loader_start_without_a_region():
    with policy_region(Policy()):
        rows = [
            batch.numpy()
            for batch in DataLoader(State(), batch_size=2, num_workers=2, return_list=True)
        ]
        assert (paddle.rand([2, 2]) @ paddle.rand([2, 2])).dtype == paddle.float16
    assert np.concatenate([row.reshape(-1, 3) for row in rows]).all()
