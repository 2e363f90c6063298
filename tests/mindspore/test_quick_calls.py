"""Common calls run few lines of code, with the same results as the full code.

All other calls run the full code.
"""

import mindspore
import numpy as np
import pytest
from followed import changes_of_file
from mindspore import Tensor, ops
from unamp_mindspore import calls, plans

from unamp import Policy, policy_region

LEVELS = ["OD", "O1", "O2", "O3"]


def bits(tensor):
    wide = (
        tensor.astype(mindspore.float32)
        if tensor.dtype in (mindspore.float16, mindspore.bfloat16)
        else tensor
    )
    return str(tensor.dtype), wide.asnumpy().tobytes()


def results():
    """Yield the results of common calls and of rare ones."""
    f = Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))
    half, brain, whole = (
        f.astype(dtype) for dtype in (mindspore.float16, mindspore.bfloat16, mindspore.int32)
    )
    yield from (ops.relu(t) for t in (f, half, brain))
    yield from (a + b for a in (f, half, brain) for b in (f, half, brain))
    yield from (whole + whole, half * 2, brain * 0.5, ops.add(half, f), ops.mul(x := f, x))
    yield from (
        ops.matmul(f, half.T),
        ops.matmul(brain, f.T),
        ops.softmax(half),
        ops.softmax(f, axis=0),
    )
    yield from (
        ops.exp(brain),
        half.sum(),
        ops.concat((half, f)),
        half.reshape(4, 3),
        ops.maximum(f, brain),
    )
    yield from (
        ops.Add()(half, f),
        ops.MatMul(transpose_b=True)(f, f),
        ops.sum(half, dtype=mindspore.float32),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", LEVELS)
def test_calls_of_all_kinds_come_to_the_same(level, dtype, monkeypatch):
    def run():
        with policy_region(Policy(level, dtype)):
            found = list(results())
        return [bits(result) for result in found]

    short = run()
    monkeypatch.setattr(plans.Plan, "quick", property(lambda plan: {}))
    assert run() == short


@pytest.mark.parametrize("level", LEVELS)
def test_a_norm_may_be_called_with_names_in_any_order(level):
    x = Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)).astype(mindspore.bfloat16)
    mean, variance, weight, bias = (Tensor(np.full(4, 1 / n, np.float32)) for n in (3, 5, 7, 9))
    with policy_region(Policy(level, "bfloat16")):
        found = ops.batch_norm(x, mean, variance, weight, bias)
        named = ops.batch_norm(
            bias=bias, weight=weight, running_var=variance, running_mean=mean, input_x=x
        )
    assert bits(named) == bits(found)


def test_the_commonest_calls_are_short(monkeypatch):
    taken = []
    perform = calls._performer.perform
    monkeypatch.setattr(
        calls._performer, "perform", lambda *args: taken.append(args[1].op) or perform(*args)
    )
    x = Tensor(np.ones((4, 4), np.float32))
    with policy_region(Policy("O3", "bfloat16")):
        ops.relu(ops.matmul(x, x) + x) * 2.0
        assert taken == []
        ops.concat((x, x))
        assert "concat" in taken or "cat" in taken


def test_an_addition_is_read_in_few_files():
    x, y = (Tensor(np.ones((4, 4), np.float32)) for _ in range(2))
    with policy_region(Policy("O1", "bfloat16", allow="add")):
        x + y
        assert 0 < changes_of_file(lambda: x + y) <= 6
