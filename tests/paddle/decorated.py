"""Networks, steps and losses for the tests of `unamp.decorate`."""

import math

import numpy as np
import paddle
from paddle import nn
from unamp_paddle.masters import masters_of  # noqa: F401 - for the tests that are PyTorch's too

import unamp

LOW = {"float16": paddle.float16, "bfloat16": paddle.bfloat16}
F32 = paddle.float32


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, [1, 4, 4]),
        nn.Conv2D(1, 8, 3, padding=1),
        nn.BatchNorm2D(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return nn.Sequential(nn.Unflatten(1, [2, 8]), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind="mlp"):
    paddle.seed(7)
    return NETWORKS[kind]()


def batch(step):
    """Return inputs and classes. One class in eight is wrong, so that the loss has a floor."""
    random = np.random.default_rng(step)
    x = random.standard_normal((32, 16), dtype="float32")
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return paddle.to_tensor(x), paddle.to_tensor(
        np.where(np.arange(32) % 8 == 0, random.integers(0, 4, 32), y)
    )


def loss_of(network, step, *, overflow=False, **policy):
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = nn.functional.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network, **policy):
    network.eval()
    with paddle.no_grad():
        return (
            sum(
                float(loss_of(network, 1000 + step, **policy).astype("float32"))
                for step in range(16)
            )
            / 16
        )


def numbers(tensor):
    return tensor.detach().astype("float32").numpy()


def trained(network):
    return [parameter for parameter in network.parameters() if not parameter.stop_gradient]


def values(network):
    """Return parameters and statistics."""
    return [numbers(parameter) for parameter in network.parameters()]


def weights(optimizer, network):
    """Return the float32 weights that the optimizer steps: the master weights where it has some."""
    masters = optimizer._master_weights
    return [numbers(masters.get(parameter.name, parameter)) for parameter in trained(network)]


def rounded(arrays, dtype):
    return [numbers(paddle.to_tensor(each).astype(dtype)) for each in arrays]


def same(first, second):
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def renamed(state, names):
    """Return an optimizer's state for a network whose parameters have other names.

    The parameters of a second network in a process have other names.
    """

    def name(key):
        old = next((old for old in names if key == old or key.startswith(f"{old}_")), None)
        return key if old is None else names[old] + key.removeprefix(old)

    masters = state.get("master_weights", {})
    state = {name(key): value for key, value in state.items() if key != "master_weights"}
    return state | {"master_weights": {name(key): value for key, value in masters.items()}}


def sgd(network, rate=0.1, kind=paddle.optimizer.SGD, **kwargs):
    return kind(rate, parameters=network.parameters(), **kwargs)


def give(network, gradients):
    """Give float32 parameters these float32 gradients, bit for bit."""
    for parameter, gradient in zip(trained(network), gradients, strict=True):
        (parameter * paddle.to_tensor(gradient)).sum().backward()


# --- what the tests that are PyTorch's too call ---------------------------------------------------

#: A parameter makes a new tensor of its gradient at each access.
KEPT_AS_OBJECTS = False

OPTIMIZERS = {
    "SGD": {},
    "Momentum": {"momentum": 0.9, "use_nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "ASGD": {"batch_num": 2},
    "Lamb": {},
    "NAdam": {},
    "RAdam": {},
    "RMSProp": {"momentum": 0.9, "centered": True},
    "Rprop": {},
}


def grouped(name, network):
    """Return an optimizer with a schedule and clipping, and if possible groups and weight decay."""
    kwargs = OPTIMIZERS[name] | {"grad_clip": nn.ClipGradByGlobalNorm(0.5)}
    parameters = network.parameters()
    if name not in ("ASGD", "Lamb", "Rprop"):
        first, others = (
            network[0].parameters(),
            [p for layer in network[1:] for p in layer.parameters()],
        )
        parameters = [
            {"params": first, "learning_rate": 0.3},
            {"params": others, "weight_decay": 0.1},
        ]
        kwargs |= {"weight_decay": 0.01}
    rate = paddle.optimizer.lr.ExponentialDecay(0.01, 0.9)
    # Rprop takes a number only.
    return getattr(paddle.optimizer, name)(
        0.01 if name == "Rprop" else rate, parameters=parameters, **kwargs
    ), rate


def rate_of(schedule):
    return schedule()


def adam(parameters, rate):
    return paddle.optimizer.Adam(rate, parameters=parameters)


def adamw(network):
    return paddle.optimizer.AdamW(0.01, parameters=network.parameters())


def clear(optimizer, set_to_zero=True):
    optimizer.clear_grad(set_to_zero)


def wide(tensor):
    return tensor.astype("float32")


def saved_master(optimizer, parameter):
    return optimizer.state_dict()["master_weights"][parameter.name].numpy()


def stepped_by(optimizer):
    return optimizer._parameter_list


def state_of(optimizer, network):
    """Return the optimizer's state of the parameters."""
    return [
        value
        for own in optimizer._accumulators.values()
        for value in own.values()
        if value.is_floating_point()
    ]


def gradients_of(loss, parameters):
    return paddle.grad(loss, parameters)


def spoil(parameter):
    """Make a parameter's gradient NaN."""
    spoilt = paddle.full(parameter.shape, math.nan, parameter.dtype)
    parameter._grad_ivar().get_tensor()._share_data_with(spoilt.get_tensor())


def clip_to_norm(network, norm):
    return float(nn.utils.clip_grad_norm_(network.parameters(), norm))


def put(parameter, array):
    parameter.set_value(paddle.to_tensor(array).astype(parameter.dtype))


def load(network, state):
    network.set_state_dict(state)


def index(numbers):
    return paddle.to_tensor(numbers)


def compiled(function):
    return paddle.jit.to_static(function, full_graph=False)


def linear(size):
    """Return a layer of ones without a bias."""
    network = nn.Linear(size, size, bias_attr=False)
    network.weight.set_value(np.ones([size, size], "float32"))
    return network


def _loaded_wrongly():
    network = made()
    optimizer = sgd(network)
    optimizer.set_state_dict({"master_weights": {network[0].weight.name: paddle.zeros([3])}})
    return network, optimizer


#: Arguments that `decorate` refuses on Paddle alone, by the text of the error.
REFUSED = {
    r"the loaded master weight of .* has the shape \[3\]": _loaded_wrongly,
    "decorate the layer itself": lambda: (paddle.DataParallel(made()), sgd(made())),
}
