"""A few steps of training with loss scaling, in NumPy around any framework: a reference to hold a framework's own against."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np

from unamp.policy import Policy
from unamp_conformance.networks import Functions, Network
from unamp_conformance.subjects import Subject

__all__ = ["LossScaler", "Training", "train"]


@dataclass
class LossScaler:
    """Scales the loss; halves the scale where a gradient is not finite.

    Args:
        scale: the scale to start with.
    """

    scale: float

    def unscaled(self, gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The gradients of the unscaled loss; None (and a lower scale from then on) where the step must be skipped."""
        if all(np.isfinite(g).all() for g in gradients.values()):
            return {name: g / self.scale for name, g in gradients.items()}
        self.scale /= 2.0
        return None


@dataclass
class Training:
    """What came out: the loss before every step, the steps skipped (from 1), the final scale, dtypes of what is kept."""

    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    scale: float = 1.0
    dtypes: dict[str, str] = field(default_factory=dict)


def train(
    subject: Subject,
    network: Network,
    policy: Policy,
    *,
    steps: int,
    scaler: LossScaler | None = None,
    overflow_at: int | None = None,
    rate: float = 0.1,
) -> Training:
    """Train a network by plain gradient descent.

    Args:
        subject: the framework and device.
        network: the network.
        policy: in force during the forward pass.
        steps: how many.
        scaler: scales the loss; none where there is none.
        overflow_at: the step (from 1) whose data are so large that its gradients overflow.
        rate: the learning rate.
    """
    ops, done, scaler = subject.operations, Training(), scaler or LossScaler(1.0)
    weights = network.parameters()
    data = {name: ops.tensor(a, device=subject.device) for name, a in network.inputs().items()}
    huge = data | {"x": ops.tensor(network.inputs()["x"] * np.float32(np.inf), device=subject.device)}
    for step in range(1, steps + 1):
        parameters = {name: ops.tensor(a, device=subject.device) for name, a in weights.items()}
        given = huge if step == overflow_at else data

        def loss(*leaves: object, names: list[str] = list(parameters), given: dict = given) -> object:  # noqa: B006
            f = Functions(ops)
            with subject.region(policy) if policy.active else nullcontext():
                return network.loss(f, network.forward(f, dict(zip(names, leaves, strict=True)), given), given)

        value, gradients = ops.value_and_grad(loss, list(parameters.values()), loss_scale=scaler.scale)
        done.dtypes |= {f"gradient of {n}": ops.dtype(g) for n, g in zip(parameters, gradients, strict=True)}
        unscaled = scaler.unscaled({n: ops.numpy(g) for n, g in zip(parameters, gradients, strict=True)})
        if unscaled is None:
            done.skipped.append(step)
            continue
        done.losses.append(float(ops.numpy(value)))
        weights = {name: a - np.float32(rate) * unscaled[name].astype(np.float32) for name, a in weights.items()}
    done.scale = scaler.scale
    done.dtypes |= {f"parameter {n}": a.dtype.name for n, a in weights.items()}
    return done
