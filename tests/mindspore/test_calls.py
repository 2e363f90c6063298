"""Calls of all kinds come to the same results, whether a trace looks or not."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, ops

import unamp
from unamp import Policy, policy_region

LEVELS = ["OD", "O1", "O2", "O3"]


def bits(tensor):
    wide = tensor.astype(mindspore.float32) if tensor.dtype in (mindspore.float16, mindspore.bfloat16) else tensor
    return str(tensor.dtype), wide.asnumpy().tobytes()


def results():
    """Calls of all kinds: what is common, and what is not."""
    f = Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))
    half, brain, whole = (f.astype(dtype) for dtype in (mindspore.float16, mindspore.bfloat16, mindspore.int32))
    yield from (ops.relu(t) for t in (f, half, brain))
    yield from (a + b for a in (f, half, brain) for b in (f, half, brain))
    yield from (whole + whole, half * 2, brain * 0.5, ops.add(half, f), ops.mul(x := f, x))
    yield from (ops.matmul(f, half.T), ops.matmul(brain, f.T), ops.softmax(half), ops.softmax(f, axis=0))
    yield from (ops.exp(brain), half.sum(), ops.concat((half, f)), half.reshape(4, 3), ops.maximum(f, brain))
    yield from (ops.Add()(half, f), ops.MatMul(transpose_b=True)(f, f), ops.sum(half, dtype=mindspore.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", LEVELS)
def test_calls_of_all_kinds_come_to_the_same_in_a_trace(level, dtype):
    def run():
        with policy_region(Policy(level, dtype)):
            found = list(results())
        return [bits(result) for result in found]

    alone = run()
    with unamp.trace():
        assert run() == alone


@pytest.mark.parametrize("level", LEVELS)
def test_a_norm_may_be_called_with_names_in_any_order(level):
    x = Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)).astype(mindspore.bfloat16)
    mean, variance, weight, bias = (Tensor(np.full(4, 1 / n, np.float32)) for n in (3, 5, 7, 9))
    with policy_region(Policy(level, "bfloat16")):
        found = ops.batch_norm(x, mean, variance, weight, bias)
        named = ops.batch_norm(bias=bias, weight=weight, running_var=variance, running_mean=mean, input_x=x)
    assert bits(named) == bits(found)
