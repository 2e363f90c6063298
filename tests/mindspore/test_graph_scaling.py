"""The dialect's loss scaling works inside compiled graphs, in MindSpore's own training loop."""

import math

import mindspore
import numpy as np
import pytest
from elsewhere import python
from mindspore import Tensor, nn, ops

import unamp
from unamp.dialects.mindspore import amp

F32, F16 = mindspore.float32, mindspore.float16


def array(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def training(module, scaler):
    """Return the training step of MindSpore's documentation (`mindspore.amp.DynamicLossScaler`)."""
    weight = Tensor(np.random.default_rng(3).standard_normal((1, 4)).astype("float32"))
    network = nn.Dense(4, 1, weight_init=weight, bias_init="zeros")
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)

    def forward(x, y):
        return scaler.scale(ops.mse_loss(network(x), y))

    gradient = mindspore.value_and_grad(forward, None, optimizer.parameters)

    @mindspore.jit
    def step(x, y):
        loss, gradients = gradient(x, y)
        gradients = scaler.unscale(gradients)
        finite = module.all_finite(gradients)
        if finite:
            optimizer(gradients)
        scaler.adjust(finite)
        return scaler.unscale(loss), finite

    return step, network


BATCHES = [1.0, 1.0, math.inf, 1.0, 1.0, 1.0, math.inf]


def trained(module):
    scaler = module.DynamicLossScaler(1024, 2, 2)
    step, network = training(module, scaler)
    seen = []
    for number, factor in enumerate(BATCHES):
        loss, finite = step(array(16, 4, seed=number) * factor, array(16, 1, seed=9))
        scale = (
            scaler.scale_value
            if isinstance(scaler.scale_value, float)
            else float(scaler.scale_value.asnumpy())
        )
        seen.append((bool(finite), scale, int(scaler.counter), float(loss.asnumpy())))
    return seen, network.weight.asnumpy()


def compared(ours, own):
    (seen, weight), (known, other) = ours, own
    assert [each[:3] for each in seen] == [each[:3] for each in known]
    np.testing.assert_allclose([each[3] for each in seen], [each[3] for each in known], rtol=1e-5)
    np.testing.assert_allclose(weight, other, rtol=1e-5)


def test_mindspores_own_training_loop_compiled():
    compared(trained(amp), trained(mindspore.amp))


def test_mindspores_own_training_loop_in_graph_mode(graph_mode):
    compared(trained(amp), trained(mindspore.amp))


@pytest.mark.parametrize(("level", "dtype"), [("O1", "bfloat16"), ("O2", "float16")])
def test_in_a_region_mindspores_own_training_loop_decides_as_outside(level, dtype):
    known, _ = trained(mindspore.amp)
    with unamp.autocast(level=level, dtype=dtype):
        seen, _ = trained(amp)
    assert [each[:3] for each in seen] == [each[:3] for each in known]
    # In the first loss, the inputs, weights, products, biased sums and the loss's terms are rounded
    # once each.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    x, y, weight = (
        each.asnumpy().astype("float64")
        for each in (array(16, 4), array(16, 1, seed=9), array(1, 4, seed=3))
    )
    apart = 6 * unit * (abs(x) @ abs(weight).T + abs(y))
    bound = np.mean(2 * abs(x @ weight.T - y) * apart + apart**2) + 6 * unit * known[0][3]
    assert 0 < abs(seen[0][3] - known[0][3]) <= bound


def test_in_a_region_the_graph_computes_low_and_scales_in_float32():
    scaler = amp.DynamicLossScaler(2.0**20, 2, 2)

    @mindspore.jit
    def step(x):
        low, scaled = ops.matmul(x, x), scaler.scale(x)
        return low, scaled, scaler.unscale(scaled), amp.all_finite(scaled)

    with unamp.autocast(dtype="float16", level="O2"):
        low, scaled, unscaled, finite = step(Tensor(np.float32([[3.0]])))
    assert (low.dtype, scaled.dtype, unscaled.dtype) == (F16, F32, F32)
    assert bool(finite)  # in float16 the product would be infinite
    assert (scaled.asnumpy().item(), unscaled.asnumpy().item()) == (3.0 * 2**20, 3.0)


def test_a_scaler_in_a_graph_is_read_and_set_from_outside():
    scaler = amp.DynamicLossScaler(8, 2, 3)

    @mindspore.jit
    def step(x):
        scaled = scaler.scale((x, (x,)))
        scaler.adjust(amp.all_finite(x))
        return scaled

    one = Tensor(np.float32(1.0))
    assert float(step(one)[1][0].asnumpy()) == 8.0
    assert (scaler.scale_value, scaler.counter) == (8.0, 1)
    scaler.counter = 2
    step(one)
    assert (scaler.scale_value, scaler.counter) == (16.0, 0)
    saved = scaler.state_dict()
    assert float(step(one / 0)[0].asnumpy()) == math.inf
    assert (scaler.scale_value, scaler.counter) == (8.0, 0)
    scaler.load_state_dict(saved | {"scale_factor": 4, "scale_window": 1})
    assert float(step(one)[0].asnumpy()) == 16.0
    assert (scaler.scale_value, scaler.counter) == (64.0, 0)
    assert scaler.adjust(False) is False  # outside of the graph, the same scale moves
    assert float(step(one)[0].asnumpy()) == 16.0
    assert step(one.astype(F16))[0].dtype == F16


def test_the_static_scaler_in_a_graph():
    scaler = amp.StaticLossScaler(128)

    @mindspore.jit
    def step(x):
        scaler.adjust(amp.all_finite(x))
        return scaler.scale(x), scaler.unscale(x)

    scaled, unscaled = step(Tensor(np.float32(2.0)))
    assert (float(scaled.asnumpy()), float(unscaled.asnumpy())) == (256.0, 2.0 / 128)
    assert scaler.scale_value == 128.0


def test_what_a_scaler_in_a_graph_cannot_become_is_an_error():
    scaler = amp.DynamicLossScaler(8, 2, 3)
    mindspore.jit(lambda_free(scaler))(Tensor(np.float32(2.0)))
    with pytest.raises(unamp.NotExpressible, match="backoff_interval=1"):
        scaler.load_state_dict(unamp.GradScaler(8.0, backoff_interval=2).state_dict())
    with pytest.raises(unamp.NotExpressible, match="dynamic"):
        scaler.load_state_dict(unamp.GradScaler(8.0, dynamic=False).state_dict())
    assert scaler.scale_value == 8.0


def lambda_free(scaler):
    def scale(x):
        return scaler.scale(x)

    return scale


def test_a_counter_is_a_count():
    scaler = amp.DynamicLossScaler(8, 2, 3)
    scaler.counter = 2
    assert scaler.adjust(True)
    assert (scaler.scale_value, scaler.counter) == (16.0, 0)
    with pytest.raises((TypeError, ValueError), match="growth_tracker"):
        scaler.counter = -1


COLD = """
import warnings
from contextlib import suppress

warnings.filterwarnings("ignore")
import mindspore
from mindspore import Tensor, ops

with suppress(SystemError):  # MindSpore's first call that takes numbers, with NumPy 2
    ops.zeros((1,))
import unamp
from unamp.dialects.mindspore import amp

scaler = amp.DynamicLossScaler(8, 2, 1)


def step(x):
    scaler.adjust(amp.all_finite(x))
    return scaler.scale(x)


@unamp.autocast(dtype="float16")
def product(x):
    return ops.matmul(x, x)


x = Tensor([[2.0]], mindspore.float32)
print(mindspore.jit(step)(x).asnumpy().item(), mindspore.jit(product)(x).dtype)
"""


def test_in_a_process_that_never_opened_a_region(tmp_path):
    (tmp_path / "cold.py").write_text(COLD)
    assert python(tmp_path / "cold.py").splitlines()[-1] == "32.0 Float16"
