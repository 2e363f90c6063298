"""Functions that open the first region of a process under SOT, each in a process of its own; run by `test_first_regions`."""

import os
import sys

import paddle

import unamp
from unamp import Policy


def region(x):
    with unamp.autocast(dtype="float16", deny=["softmax"], preset="torch-cuda"):
        return x @ x


def paddles_spelling(x):
    with unamp.auto_cast(custom_black_list=["elementwise_add"]):
        return x @ x


def policy(x):
    with unamp.policy_region(Policy("O2", "float16", preset="mindspore")):
        return x @ x


def default(x):
    with unamp.default_region(Policy("O2", "float16"), like=x):
        return x @ x


@unamp.autocast(dtype="float16")
def inner(x):
    return x @ x


def decorated(x):
    return inner(x)


def dialect(x):
    from unamp.dialects.paddle.amp import auto_cast

    with auto_cast():
        return x @ x


def after_a_question(x):
    assert unamp.current_policy("paddle") is None
    return region(x)


class Network(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)

    def forward(self, x):
        with unamp.autocast(dtype="float16"):
            return self.linear(x)


def check(function):
    static = paddle.jit.to_static(function() if isinstance(function, type) else function, full_graph=False)
    for _ in range(2):
        assert static(paddle.rand([4, 4])).dtype == paddle.float16


if __name__ == "__main__":
    for each in (region, paddles_spelling, policy, default, decorated, dialect, after_a_question, Network):
        if (child := os.fork()) == 0:
            check(each)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{each.__name__} failed")
