"""Training with loss scaling, in NumPy around any framework, compared with float32 training."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from unamp.policy import Policy
from unamp.scaling.loss_scale import LossScale
from unamp_conformance.check.networks import NETWORKS, Arrays, Functions, Network
from unamp_conformance.subjects import Subject

__all__ = ["QUICK", "RATE", "STEPS", "State", "check_training", "train"]

#: The networks that are trained in a run that is not a full one, with their numbers of steps.
QUICK: Mapping[str, int] = {"mlp": 16, "residual": 8}
#: The number of steps of every network in a full run.
STEPS = 200
#: The number of steps that are taken once more, from a checkpoint: they start from the same bits,
#: and must end with the same bits.
_RESUMED = 25
#: The learning rate. It is low enough for float32 training to be stable for every network.
RATE = 0.05

#: The relative distance allowed between the loss and that of float32 training.
_BOUND = 0.03


@dataclass
class State:
    """The state that training goes on from: weights, running statistics, loss scale, step count."""

    weights: Arrays
    buffers: Arrays
    scale: LossScale = LossScale(2.0**10)  # noqa: RUF009 - a value
    step: int = 0

    @classmethod
    def of(cls, network: Network) -> State:
        """Return the state before the first step."""
        return cls(network.parameters(), network.statistics())

    def saved(self) -> tuple[str, bytes]:
        """Return the state as a checkpoint: JSON and an ``npz`` file."""
        arrays = io.BytesIO()
        named: dict[str, Any] = {f"weights {n}": a for n, a in self.weights.items()}
        named |= {f"buffers {n}": a for n, a in self.buffers.items()}
        np.savez(arrays, **named)  # NumPy 1 takes every other word for the name of an array
        return json.dumps(
            {"scaler": self.scale.state("unamp"), "step": self.step}
        ), arrays.getvalue()

    @classmethod
    def restored(cls, text: str, arrays: bytes) -> State:
        """Return the state of a checkpoint."""
        kept = json.loads(text)
        parts: dict[str, Arrays] = {"weights": {}, "buffers": {}}
        with np.load(io.BytesIO(arrays)) as file:
            for key in file.files:
                part, name = key.split(" ", 1)
                parts[part][name] = file[key]
        return cls(
            parts["weights"], parts["buffers"], LossScale().restored(kept["scaler"]), kept["step"]
        )


@dataclass
class Training:
    """The outcome of some steps: those skipped (from 1), loss scales, dtypes, lost parameters.

    A loss scale is the one after each step; dtypes are those of gradients.
    """

    skipped: list[int] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def train(
    subject: Subject,
    network: Network,
    policy: Policy,
    state: State,
    until: int,
    *,
    overflow_at: int | None = None,
    done: Training | None = None,
) -> Training:
    """Train by plain gradient descent from ``state``, which is changed to the state at the end.

    Args:
        subject: the framework and device.
        network: the network.
        policy: the policy in force during the forward pass.
        state: see above.
        until: the last step (from 1).
        overflow_at: the step whose loss is multiplied by infinity.
        done: the outcome of the steps before, to which these are added.
    """
    done = done or Training()
    while state.step < until:
        state.step += 1
        scale = math.inf if state.step == overflow_at else state.scale.scale
        gradients, buffers, dtypes = _gradients(subject, network, policy, state, scale)
        overflow = not all(np.isfinite(g).all() for g in gradients.values())
        if overflow:
            done.skipped.append(state.step)
        else:
            step = np.float32(RATE) / np.float32(scale)
            state.weights = {
                n: a - step * gradients[n].astype(np.float32) for n, a in state.weights.items()
            }
        state.scale = state.scale.after(overflow)
        state.buffers = buffers
        done.scales.append(state.scale.scale)
        done.dtypes |= dtypes
        done.lost += [n for n, a in state.weights.items() if not np.isfinite(a).all()]
    return done


def _tensors(subject: Subject, arrays: Arrays) -> dict[str, Any]:
    return {name: subject.operations.tensor(a, device=subject.device) for name, a in arrays.items()}


def _gradients(
    subject: Subject, network: Network, policy: Policy, state: State, scale: float
) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Return the gradients of the scaled loss, the running statistics and the gradients' dtypes.

    The statistics are those after the step.
    """
    ops = subject.operations
    parameters, data = _tensors(subject, state.weights), _tensors(subject, network.inputs())
    buffers = {n: ops.buffer(a, device=subject.device) for n, a in state.buffers.items()}

    def loss(*leaves: Any) -> Any:
        f = Functions(ops)
        given = dict(zip(parameters, leaves, strict=True)) | buffers
        with subject.region(policy) if policy.active else nullcontext():
            return network.loss(f, network.forward(f, given, data), data)

    _, found = ops.value_and_grad(loss, list(parameters.values()), loss_scale=scale)
    named = dict(zip(parameters, found, strict=True))
    dtypes = {f"gradient of {n}": ops.dtype(g) for n, g in named.items()}
    return (
        {n: ops.numpy(g) for n, g in named.items()},
        {n: ops.numpy(b) for n, b in buffers.items()},
        dtypes,
    )


def _loss(subject: Subject, network: Network, state: State) -> float:
    """Return the loss in float32, outside any region."""
    f, data = Functions(subject.operations), _tensors(subject, network.inputs())
    buffers = {
        n: subject.operations.buffer(a, device=subject.device) for n, a in state.buffers.items()
    }
    value = network.loss(
        f, network.forward(f, _tensors(subject, state.weights) | buffers, data), data
    )
    return float(subject.operations.numpy(value))


@lru_cache(maxsize=64)
def _plain(subject: Subject, network: str, steps: int) -> float:
    """Return the loss that float32 training reaches."""
    state = State.of(NETWORKS[network])
    train(subject, NETWORKS[network], Policy("O0"), state, steps)
    return _loss(subject, NETWORKS[network], state)


def check_training(
    subject: Subject, network: Network, policy: Policy, steps: int = STEPS
) -> tuple[str, dict[str, Any]]:
    """Train with loss scaling under a policy, and again from a checkpoint in the middle.

    One of the steps overflows.

    Args:
        subject: the framework and device.
        network: the network.
        policy: the policy.
        steps: how many steps are taken.

    Returns:
        A message, empty where nothing is wrong, and the observations.
    """
    # one step more, for the one that is skipped
    last, overflow, middle = steps + 1, steps // 3, steps // 2
    state = State.of(network)
    began = _loss(subject, network, state)
    done = train(subject, network, policy, state, middle, overflow_at=overflow)
    again = State.restored(*state.saved())
    train(subject, network, policy, again, min(last, middle + _RESUMED))
    train(subject, network, policy, state, again.step, done=done)
    kept, known = ({**each.weights, **each.buffers} for each in (again, state))
    train(subject, network, policy, state, last, done=done)

    wanted, reached = _plain(subject, network.name, steps), _loss(subject, network, state)
    error = abs(reached - wanted) / wanted
    scale = State.of(network).scale.scale
    scales = [scale] * (overflow - 1) + [scale / 2] * (last - overflow + 1)
    complaints = {
        f"the loss is {100 * error:.1f}% off the one of float32 training": not error < _BOUND,
        f"it does not learn: from {began:.4g} to {reached:.4g}": not reached < began,
        f"skipped {done.skipped}, should be {overflow} alone": done.skipped != [overflow],
        "the scale should have been halved once, by the overflow": done.scales != scales,
    }
    wrong = [
        *(complaint for complaint, holds in complaints.items() if holds),
        *(f"{name} is lost" for name in dict.fromkeys(done.lost)),
        *(
            f"{name} is {dtype}, should be float32"
            for name, dtype in done.dtypes.items()
            if dtype != "float32"
        ),
        *(
            f"{n} differs after a resumed run"
            for n in known
            if not np.array_equal(kept[n], known[n])
        ),
    ]
    return "; ".join(wrong), {
        "error": error,
        "bound": _BOUND,
        "loss": [began, wanted, reached],
        "steps": steps,
    }
