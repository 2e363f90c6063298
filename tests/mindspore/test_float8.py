"""Products in float8 on MindSpore: the shadow of a trace shows their error."""

from __future__ import annotations

import floats8
import mindspore as ms
import pytest
from mindspore import Tensor, mint, nn, ops

import unamp


def test_numbers_are_those_of_ml_dtypes():
    from unamp_mindspore.calls import _Performer

    floats8.numbers_are_those_of_ml_dtypes(
        _Performer.arithmetic, Tensor, lambda tensor: tensor.asnumpy()
    )


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_the_error_of_a_product(dtype):
    a, b = floats8.FACTORS
    x, y = Tensor(a), Tensor(b)
    dense = nn.Dense(48, 6, weight_init=Tensor(b.T.copy()))
    for call in (
        lambda: dense(x),
        lambda: ops.dense(x, Tensor(b.T.copy())),
        lambda: ops.matmul(x, y),
        lambda: x @ y,
        lambda: mint.matmul(x, y),
        lambda: ops.bmm(x[None], y[None]),
        lambda: ops.MatMul(transpose_b=True)(x, Tensor(b.T.copy())),
    ):
        floats8.error_is_that_of_numpy(call, dtype)


def test_what_is_not_computed_is_said():
    x = ms.ops.ones((4, 4))
    with unamp.trace(shadow="float8_e4m3_rows") as trace:
        ops.matmul(x, x)
        ops.exp(x)
    assert [record.shadow.left_out for record in trace.records] == [
        "this framework's adapter computes no product from float8_e4m3_rows",
        "float8 is for products of two matrices",
    ]
