"""Networks, steps and losses for the tests of `unamp.decorate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from unamp_torch.masters import masters_of

import unamp

LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
F32 = torch.float32


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 8)), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind: str = "mlp") -> nn.Module:
    torch.manual_seed(7)
    return NETWORKS[kind]()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and classes. One class in eight is wrong, so that the loss has a floor."""
    random = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=random)
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return x, torch.where(torch.arange(32) % 8 == 0, torch.randint(4, (32,), generator=random), y)


def loss_of(
    network: nn.Module, step: int, *, overflow: bool = False, **policy: Any
) -> torch.Tensor:
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = F.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network: nn.Module, **policy: Any) -> float:
    network.eval()
    with torch.no_grad():
        return sum(loss_of(network, 1000 + step, **policy).item() for step in range(16)) / 16


def values(of: Any) -> list[torch.Tensor]:
    """Return a network's parameters, or with an optimizer the float32 weights that it steps.

    These are the master weights where the optimizer has some.
    """
    if isinstance(of, nn.Module):
        return [parameter.detach().clone() for parameter in of.parameters()]
    masters = masters_of(of)
    weights = {} if masters is None else masters.weights
    return [
        weights.get(p, p).detach().clone() for group in of.param_groups for p in group["params"]
    ]


def same(first: Any, second: Any) -> bool:
    return all(
        torch.equal(a, b) and a.dtype is b.dtype
        for a, b in zip(values(first), values(second), strict=True)
    )


def sgd(
    network: nn.Module, lr: float = 0.1, kind: Any = torch.optim.SGD, **kwargs: Any
) -> torch.optim.Optimizer:
    return kind(network.parameters(), lr=lr, **kwargs)


# --- what the tests that are PaddlePaddle's too call ----------------------------------------------

#: A step leaves the very tensors that hold gradients as they are.
KEPT_AS_OBJECTS = True

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


def grouped(name: str, network: Any) -> tuple[torch.optim.Optimizer, lr_scheduler.LRScheduler]:
    """Return an optimizer with two groups, and its schedule."""
    groups = [
        {"params": list(network[0].parameters())},
        {"params": list(network[1:].parameters()), "lr": 0.003},
    ]
    optimizer = OPTIMIZERS[name](groups)
    return optimizer, lr_scheduler.ExponentialLR(optimizer, 0.9)


def rate_of(schedule: lr_scheduler.LRScheduler) -> Any:
    return schedule.get_last_lr()


def adam(parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate)


def adamw(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=0.01)


def clear(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    optimizer.zero_grad(set_to_none)


def trained(network: nn.Module) -> list[Tensor]:
    return [
        p
        for p in network.parameters()
        if p.requires_grad and not isinstance(p, nn.UninitializedParameter)
    ]


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().numpy().copy()


def wide(tensor: Tensor) -> Tensor:
    return tensor.float()


def weights(optimizer: torch.optim.Optimizer, network: nn.Module) -> list[np.ndarray]:
    """Return the float32 weights that the optimizer steps: the master weights where it has some."""
    masters = masters_of(optimizer)
    return [numbers(p if masters is None else masters.weights.get(p, p)) for p in trained(network)]


def saved_master(optimizer: torch.optim.Optimizer, parameter: Tensor) -> np.ndarray:
    return numbers(
        optimizer.state_dict()["state"][stepped_by(optimizer).index(parameter)]["master_weight"]
    )


def stepped_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state_of(optimizer: torch.optim.Optimizer, network: nn.Module) -> list[Tensor]:
    """Return the optimizer's state; check that it has state for the network's parameters alone."""
    assert optimizer.state.keys() <= set(network.parameters())
    return [
        v
        for own in optimizer.state.values()
        for k, v in own.items()
        if k != "step" and isinstance(v, Tensor)
    ]


def give(network: nn.Module, gradients: Sequence[np.ndarray]) -> None:
    """Give float32 parameters these float32 gradients, bit for bit."""
    for parameter, gradient in zip(trained(network), gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient)


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    return torch.autograd.grad(loss, parameters)


def spoil(parameter: Tensor) -> None:
    """Make one number of a parameter's gradient NaN."""
    parameter.grad[0, 0] = math.nan  # type: ignore[index]


def clip_to_norm(network: nn.Module, norm: float) -> float:
    return nn.utils.clip_grad_norm_(network.parameters(), norm).item()


def put(parameter: Tensor, array: np.ndarray) -> None:
    parameter.data.copy_(torch.from_numpy(array))


def load(network: nn.Module, state: dict[str, Any]) -> None:
    network.load_state_dict(state)


def index(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def linear(size: int) -> nn.Module:
    """Return a layer of ones without a bias."""
    network = nn.Linear(size, size, bias=False)
    nn.init.ones_(network.weight)
    return network


def _no_shape_yet() -> tuple[Any, Any]:
    network = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    return network, sgd(network[0])


#: Arguments that `decorate` refuses on PyTorch alone, by the text of the error.
REFUSED = {"parameter 1.weight has no shape yet": _no_shape_yet}
