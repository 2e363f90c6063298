"""Products in float8 on Paddle: the shadow of a trace shows their error."""

from __future__ import annotations

import floats8
import paddle
import pytest
from paddle import nn

import unamp


def test_numbers_are_those_of_ml_dtypes():
    from unamp_paddle.calls import _Performer

    floats8.numbers_are_those_of_ml_dtypes(
        _Performer.arithmetic, paddle.to_tensor, lambda tensor: tensor.numpy()
    )


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_the_error_of_a_product(dtype):
    a, b = floats8.FACTORS
    x, y = paddle.to_tensor(a), paddle.to_tensor(b)
    layer = nn.Linear(*b.shape, weight_attr=nn.initializer.Assign(b))
    for call in (
        lambda: layer(x),
        lambda: nn.functional.linear(x, y),
        lambda: paddle.matmul(x, y),
        lambda: x @ y,
        lambda: paddle.matmul(x, y.T.contiguous(), transpose_y=True),
        lambda: paddle.mm(x, y),
        lambda: paddle.bmm(x[None], y[None]),
        lambda: paddle.einsum("ij,jk->ik", x, y),
        lambda: paddle.addmm(paddle.zeros([5, 6]), x, y),
    ):
        floats8.error_is_that_of_numpy(call, dtype)


def test_what_is_not_computed_is_said():
    x = paddle.rand([4, 4])
    with unamp.trace(shadow="float8_e4m3_rows") as trace:
        x @ x
        paddle.exp(x)
    assert [record.shadow.left_out for record in trace.records] == [
        "this framework's adapter computes no product from float8_e4m3_rows",
        "float8 is for products of two matrices",
    ]
    net = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(
        unamp.NotExpressible, match="the adapter for paddle computes no layer from float8"
    ):
        unamp.tune(net, net, [paddle.rand([2, 16])], dtype="float8_e4m3", tolerance=0.05)
