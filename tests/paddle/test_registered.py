"""Registered operations of a user on Paddle keep the promises of the module `registered`."""

import paddle
import pytest
import registered
from registered import test_promises  # noqa: F401

import unamp


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
    registered.a_compiled_function_follows(
        "paddle", lambda call: paddle.jit.to_static(call, full_graph=full_graph)
    )


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


def test_second_runs_that_the_network_would_notice():
    x = paddle.ones([2, 2])
    registered.a_shadow_is_left_out(lambda x: x + paddle.rand([2, 2]), x, "it draws random numbers")
    registered.a_shadow_is_left_out(lambda x: x.add_(x), x, "it changes what it is given")
    assert float(x[0, 0]) == 2.0  # added once, not twice


def test_a_change_that_would_be_lost_is_refused():
    x = paddle.ones([2])
    registered.a_change_that_would_be_lost_is_refused(lambda x: x.add_(x), x)
    assert x.tolist() == [2.0, 2.0]
