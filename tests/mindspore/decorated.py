"""Networks, steps and losses for the tests of loss scaling and `unamp.decorate`."""

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim

import unamp

LOW = {"float16": ms.float16, "bfloat16": ms.bfloat16}


def weight(*shape):
    return Tensor((np.random.standard_normal(shape) * 0.3).astype("float32"))


def mlp():
    return nn.SequentialCell(
        nn.Dense(6, 12, weight_init=weight(12, 6)),
        nn.Tanh(),
        nn.Dense(12, 1, weight_init=weight(1, 12)),
    )


class Convolutions(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, has_bias=True, weight_init=weight(3, 1, 3, 3))
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Dense(12, 1, weight_init=weight(1, 12))

    def construct(self, x):
        y = ops.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 3)[:, :, :, :2])))
        return self.head(y.reshape(y.shape[0], -1))


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inward = nn.Dense(2, 4, weight_init=weight(4, 2))
        self.norm = nn.LayerNorm((4,))
        self.head = nn.Dense(4, 1, weight_init=weight(1, 4))

    def construct(self, x):
        y = self.inward(x.reshape(-1, 3, 2))
        scores = ops.softmax(ops.matmul(y, y.swapaxes(1, 2)), -1)
        return self.head(self.norm(ops.matmul(scores, y)).mean(1))


NETWORKS = {"mlp": mlp, "convolutions": Convolutions, "attention": Attention}


def made(network="mlp"):
    np.random.seed(3)
    return NETWORKS[network]()


def data(number):
    x = np.random.default_rng(number).standard_normal((8, 6), dtype="float32")
    return x, np.sin(x.sum(1, keepdims=True))


def grads_of(net, scaler, level="O2", dtype="float16", enabled=True):
    """Return a function from a step's number to the loss and the scaled gradients."""

    def loss_of(x, y):
        with unamp.autocast(level=level, dtype=dtype, enabled=enabled):
            out = net(x)
        loss = ops.mse_loss(out.astype(ms.float32), y)
        return scaler.scale(loss), loss

    graded = ms.value_and_grad(loss_of, None, net.trainable_params(), has_aux=True)

    def step(number, *, overflow=False):
        x, y = data(number)
        (_, loss), gradients = graded(
            Tensor(x * np.float32(math.inf) if overflow else x), Tensor(y)
        )
        return float(loss.asnumpy()), gradients

    return step


def values(tensors):
    return [each.astype(ms.float32).asnumpy().copy() for each in tensors]


# --- what the tests that are TensorFlow's too call ------------------------------------------------

_OPTIMIZERS = {
    "SGD": lambda p: nn.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "Momentum": lambda p: nn.Momentum(
        p, nn.ExponentialDecayLR(0.05, 0.9, 2), 0.9, use_nesterov=True
    ),
    "Adam": lambda p: nn.Adam(p, 0.01),
    "Adam of groups": lambda p: nn.Adam(
        [{"params": p[:1], "lr": 0.1, "weight_decay": 0.1}, {"params": p[1:]}], 0.01
    ),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.01, centered=True),
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "Adadelta": lambda p: nn.Adadelta(p, 0.5),
    "experimental SGD": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "experimental AdamW": lambda p: optim.AdamW(
        [{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], 0.01
    ),
}
OPTIMIZERS = {
    name: lambda network, make=make: make(list(network.trainable_params()))
    for name, make in _OPTIMIZERS.items()
}


def sgd(network, rate):
    return nn.SGD(network.trainable_params(), rate)


def adam(network, rate):
    return nn.Adam(network.trainable_params(), rate)


def momentum(network):
    return nn.Momentum(network.trainable_params(), 0.02, 0.9)


def parameters(network):
    return list(network.get_parameters())


def trained(network):
    return network.trainable_params()


def masters(optimizer):
    return list(optimizer.master_weights)


def held(optimizer):
    return list(optimizer.get_parameters())


def step_with(optimizer, gradients, network):
    optimizer(tuple(gradients))


def tensor(array, dtype):
    return Tensor(np.asarray(array, "float32")).astype(
        getattr(ms, dtype) if isinstance(dtype, str) else dtype
    )


def finish(optimizer, network):
    """Do nothing: MindSpore needs no call after the last step."""


def put(network, parameter, array):
    value = ms.Parameter(tensor(array, parameter.dtype), name=parameter.name)
    ms.load_param_into_net(network, {parameter.name: value})


def first_name(network, optimizer=None):
    """Return the name of the first parameter, as the network or the optimizer calls it."""
    return "0.weight" if optimizer is None else optimizer.parameters[0].name
