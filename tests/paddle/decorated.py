"""Networks, steps and losses for the tests of `unamp.decorate`."""

import functools
import math

import numpy as np
import paddle
from paddle import nn

import unamp

LOW = {"float16": paddle.float16, "bfloat16": paddle.bfloat16}
F32 = paddle.float32


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, [1, 4, 4]), nn.Conv2D(1, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return nn.Sequential(nn.Unflatten(1, [2, 8]), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind="mlp"):
    paddle.seed(7)
    return NETWORKS[kind]()


def batch(step):
    """Inputs and classes, one in eight of them wrong: the loss has a floor."""
    random = np.random.default_rng(step)
    x = random.standard_normal((32, 16), dtype="float32")
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return paddle.to_tensor(x), paddle.to_tensor(np.where(np.arange(32) % 8 == 0, random.integers(0, 4, 32), y))


def loss_of(network, step, *, overflow=False, **policy):
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = nn.functional.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network, **policy):
    network.eval()
    with paddle.no_grad():
        return sum(float(loss_of(network, 1000 + step, **policy).astype("float32")) for step in range(16)) / 16


def numbers(tensor):
    return tensor.detach().astype("float32").numpy()


def trained(network):
    return [parameter for parameter in network.parameters() if not parameter.stop_gradient]


def values(network):
    """Parameters and statistics."""
    return [numbers(parameter) for parameter in network.parameters()]


def weights(optimizer, network):
    """Return what the optimizer steps, in float32: the master weights where it has some."""
    masters = optimizer._master_weights
    return [numbers(masters.get(parameter.name, parameter)) for parameter in trained(network)]


def rounded(arrays, dtype):
    return [numbers(paddle.to_tensor(each).astype(dtype)) for each in arrays]


def same(first, second):
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def renamed(state, names):
    """An optimizer's state for a network whose parameters have other names, as a second one in a process has."""

    def name(key):
        old = next((old for old in names if key == old or key.startswith(f"{old}_")), None)
        return key if old is None else names[old] + key.removeprefix(old)

    masters = state.get("master_weights", {})
    state = {name(key): value for key, value in state.items() if key != "master_weights"}
    return state | {"master_weights": {name(key): value for key, value in masters.items()}}


def sgd(network, rate=0.1, **kwargs):
    return paddle.optimizer.SGD(rate, parameters=network.parameters(), **kwargs)


def give(network, gradients):
    """Put float32 gradients on float32 parameters, to the bit."""
    for parameter, gradient in zip(trained(network), gradients, strict=True):
        (parameter * paddle.to_tensor(gradient)).sum().backward()


@functools.cache
def float32_loss(kind):
    network = made(kind)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=network.parameters())
    for step in range(200):
        loss_of(network, step, enabled=False).backward()
        optimizer.step()
        optimizer.clear_grad()
    return evaluated(network, enabled=False)
