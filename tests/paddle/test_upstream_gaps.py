"""Failures of Paddle's own, each shown without unamp.

The conformance suite lists them as known gaps. If a test fails because Paddle has mended the
failure, its gap in `adapters/unamp_paddle/gaps.toml` must go.
"""

import gc

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from unamp_paddle.conformance.ways.opening import called


def in_cond(x):
    return paddle.static.nn.cond(x.sum() > 0, lambda: paddle.einsum("ij,jk->ik", x, x), lambda: x)


def product_in_cond(x):
    return paddle.static.nn.cond(x.sum() > 0, lambda: x @ x, lambda: x)


def joined_in_loop(x):
    def body(n, result):
        return [n + 1, paddle.concat([x, x])]

    start = [paddle.zeros([1], "int64"), paddle.zeros_like(paddle.concat([x, x]))]
    return paddle.static.nn.while_loop(lambda n, result: n < 2, body, start)[1]


def added_in_loop(x):
    def body(n, result):
        return [n + 1, x + x]

    return paddle.static.nn.while_loop(
        lambda n, result: n < 2, body, [paddle.zeros([1], "int64"), paddle.zeros_like(x + x)]
    )[1]


@pytest.mark.parametrize(
    ("fails", "runs", "message", "stop_gradient"),
    [
        (in_cond, product_in_cond, "DenseTensor shouldn't be null", False),
        (joined_in_loop, added_in_loop, "Tensor holds no memory", True),
    ],
)
def test_values_of_a_branch_or_a_loop_without_memory(fails, runs, message, stop_gradient):
    x = paddle.ones([3, 3])
    x.stop_gradient = stop_gradient
    assert paddle.jit.to_static(runs, full_graph=True)(x).shape == [3, 3]
    with pytest.raises(RuntimeError, match=message):
        paddle.jit.to_static(fails, full_graph=True)(x)


def in_program(compute, x, *, saved=None):
    """Return the results of a program built by hand; with a path, save and load it first."""
    main, startup, executor = (
        paddle.static.Program(),
        paddle.static.Program(),
        paddle.static.Executor(paddle.CPUPlace()),
    )
    paddle.enable_static()
    try:
        with paddle.static.program_guard(main, startup):
            given = paddle.static.data("x", x.shape, "float32")
            given.stop_gradient = False
            wanted = list(compute(given))
        if saved is not None:
            paddle.static.save_inference_model(saved, [given], wanted, executor, program=main)
            main, _, wanted = paddle.static.load_inference_model(saved, executor)
        return executor.run(main, feed={"x": x}, fetch_list=wanted)
    finally:
        paddle.disable_static()


def test_the_gradient_of_a_layer_norm_is_wrong_where_those_of_its_parameters_are_not_asked_for():
    numbers, weight = (
        np.random.default_rng(0).standard_normal((4, 8)).astype("float32"),
        np.arange(8, dtype="float32"),
    )
    inputs = [paddle.to_tensor(each, stop_gradient=False) for each in (numbers, weight, weight)]

    def gradient(of):
        return paddle.grad(F.layer_norm(inputs[0], [8], *inputs[1:]).square().sum(), of)[0].numpy()

    centred = numbers.astype("float64") - numbers.mean(1, keepdims=True, dtype="float64")
    deviation = np.sqrt(centred.var(1, keepdims=True) + 1e-5)
    normal = centred / deviation
    arriving = 2 * (normal * weight + weight) * weight
    means = arriving.mean(1, keepdims=True) + normal * (arriving * normal).mean(1, keepdims=True)
    exact = (arriving - means) / deviation
    np.testing.assert_allclose(gradient(inputs), exact, rtol=1e-3, atol=1e-3)
    assert np.abs(gradient(inputs[:1]) - exact).max() > 0.1 * np.abs(exact).max()


def test_a_program_is_saved_for_inference(tmp_path):
    x = np.random.default_rng(0).standard_normal((8, 3)).astype("float32") + 5

    def normalised(x):
        mean, variance = paddle.zeros([3]), paddle.ones([3])
        return [F.batch_norm(x, mean, variance, training=True)]

    (built,), (loaded,) = (
        in_program(normalised, x),
        in_program(normalised, x, saved=str(tmp_path / "saved")),
    )
    np.testing.assert_allclose(built.mean(0), np.zeros(3), atol=1e-4)  # with the batch's statistics
    np.testing.assert_allclose(loaded, x, rtol=1e-4)  # with the running statistics, 0 and 1


@pytest.mark.parametrize("left", [True, False])
def test_values_that_point_into_a_program_wait_for_the_collector_unless_a_way_calls_it(left):
    def product(a, b):
        return a * b

    inputs = [paddle.to_tensor([2.0], stop_gradient=False) for _ in range(2)]
    compiled = paddle.jit.to_static(product, full_graph=True)
    gc.collect()
    gc.disable()
    try:
        (compiled(*inputs) if left else called(compiled, inputs)).backward()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [
            str(each)
            for held in gc.garbage
            for each in gc.get_referents(held)
            if isinstance(each, paddle.pir.Value)
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert any("block_arg" in value for value in found) is left
    assert inputs[0].grad.item() == 2.0
