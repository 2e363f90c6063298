"""Functions that open the first region of a process while Paddle compiles them.

`test_first_regions` runs this script, which gives each function a process of its own.
"""

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


def chosen(x):
    if x.sum() > 0:
        return x @ x
    return x @ x + 1


# a compiler that reads the source sees no decorator above the function
handed_over = unamp.autocast(dtype="float16")(chosen)


def calls_what_was_handed_over(x):
    return handed_over(x)


class Decorated(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)

    @unamp.autocast(dtype="float16")
    def forward(self, x):
        return self.linear(x)


class DecoratedLater(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)
        self.forward = unamp.autocast(dtype="float16")(self.forward)

    def forward(self, x):
        return self.linear(x)


@unamp.autocast(enabled=False)
@unamp.autocast(dtype="float16")
def twice(x):
    return x @ x


def check(function, full_graph):
    static = paddle.jit.to_static(
        function() if isinstance(function, type) else function, full_graph=full_graph
    )
    for _ in range(2):
        assert static(paddle.rand([4, 4])).dtype == paddle.float16


if __name__ == "__main__":
    opened = (
        region,
        paddles_spelling,
        policy,
        default,
        decorated,
        dialect,
        after_a_question,
        Network,
    )
    behind = inner, handed_over, calls_what_was_handed_over, Decorated, DecoratedLater, twice
    for each, full_graph in [
        *((each, False) for each in opened + behind),
        *((each, True) for each in behind),
    ]:
        if (child := os.fork()) == 0:
            check(each, full_graph)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{each.__name__} failed, full_graph={full_graph}")
