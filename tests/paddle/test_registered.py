"""Operations of one's own on PaddlePaddle: see `registered`."""

from collections.abc import Callable

import paddle
import pytest
import registered

import unamp


@pytest.mark.parametrize("promise", registered.promises("paddle"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()


class Product(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensor()
        return gradient @ w.t(), x.t() @ gradient


@pytest.mark.parametrize("full_graph", [True, False])
def test_compiled_functions(full_graph):
    registered.a_compiled_function_follows("paddle", lambda call: paddle.jit.to_static(call, full_graph=full_graph))


def test_a_layer_with_a_gradient_of_its_own():
    registration = unamp.register_operation("unamp_tests::py_layer", Product, rule="low")
    x, w = (paddle.full([8, 8], 1 + 2.0**-9) for _ in range(2))
    x.stop_gradient = w.stop_gradient = False
    with unamp.autocast(dtype="bfloat16"):
        low = Product.apply(x, w)
    low.astype("float32").sum().backward()
    registration.undo()
    assert low.dtype == paddle.bfloat16
    assert float(low.astype("float32")[0, 0]) == registered.IN_LOW
    assert x.grad.dtype == paddle.float32
    assert "apply" not in vars(Product)
    assert Product.apply(x, w).dtype == paddle.float32
