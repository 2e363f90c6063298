"""A library for four frameworks: attention, a norm, a loss, a training step.

The frameworks are PyTorch, PaddlePaddle, MindSpore and TensorFlow. The library imports none of
them: who calls it brings tensors, and with them a framework. It has a policy of its own, which is
in force where its caller has said nothing. A region of the caller's, one that switches mixed
precision off, and the framework's own AMP all go before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import unamp

__all__ = ["DEFAULT", "attention", "cross_entropy", "functions_of", "rms_norm", "training_step"]

#: All in bfloat16, but for what loses most in it: losses and norms, which level O2 knows of, and
#: attention's weights.
DEFAULT = unamp.Policy("O2", "bfloat16", deny=["softmax"])


def attention(query: Any, key: Any, value: Any, policy: unamp.Policy = DEFAULT) -> Any:
    """Return the values, weighted by how well queries and keys go together."""
    f = functions_of(query)
    with unamp.default_region(policy, like=query):
        scores = query @ f.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5
        # softmax is called by its name: written out as exp, sum and a division, no rule for softmax
        # could reach it.
        return f.softmax(scores, -1) @ value


def rms_norm(x: Any, gain: Any, epsilon: float = 1e-6) -> Any:
    """Return numbers divided by their root mean square, in float32 whatever policy is in force."""
    f = functions_of(x)
    # The frameworks' own versions of this norm differ in arguments and devices, so it is written
    # out. A written-out formula has no name that a policy could decide about, so it decides for
    # itself: its squares would overflow float16.
    with unamp.autocast(enabled=False):
        x = f.float32(x)
        return x * (f.mean(x * x, -1, True) + epsilon) ** -0.5 * gain


def cross_entropy(logits: Any, labels: Any, policy: unamp.Policy = DEFAULT) -> Any:
    """Return the mean cross entropy of logits and class numbers.

    The default policy computes it in float32.
    """
    f = functions_of(logits)
    with unamp.default_region(policy, like=logits):
        losses = f.cross_entropies(logits, labels)
    with unamp.autocast(enabled=False):
        # a policy decides about the loss; the mean is ours, and O2 would take it low
        return f.mean(losses, 0, False)


def training_step(
    loss_of: Callable[..., Any],
    parameters: Sequence[Any],
    optimizer: Any,
    scaler: unamp.GradScaler,
    *batch: Any,
    policy: unamp.Policy = DEFAULT,
) -> tuple[Any, bool]:
    """Take one step, and return the loss and whether the step was taken.

    A step whose gradients overflow is skipped.

    Args:
        loss_of: computes the loss of a batch.
        parameters: what the optimizer steps.
        optimizer: one of the framework's own.
        scaler: scales the loss, which float16 needs and bfloat16 does not: there,
            ``GradScaler(enabled=False)``.
        *batch: tensors.
        policy: what is in force where nothing is yet.
    """
    f = functions_of(batch[0])

    def scaled_loss() -> tuple[Any, Any]:
        with unamp.default_region(policy, like=batch):
            loss = loss_of(*batch)
        return scaler.scale(loss), loss

    loss, gradients = f.backward(scaled_loss, parameters, optimizer)
    taken = scaler.step(optimizer, gradients=gradients)
    scaler.update()
    f.clear(optimizer)
    return loss, taken


class Functions(NamedTuple):
    """All that the library must know of a framework. Operators and `shape` are the same in each."""

    softmax: Callable[..., Any]
    mean: Callable[..., Any]
    swapaxes: Callable[..., Any]
    float32: Callable[[Any], Any]
    cross_entropies: Callable[..., Any]
    backward: Callable[..., tuple[Any, Any]]
    clear: Callable[[Any], object]


def functions_of(tensor: Any) -> Functions:
    """Return the functions of a tensor's framework."""
    for each in type(tensor).__mro__:  # a subclass of a tensor is a tensor
        name = each.__module__.partition(".")[0]
        if name in _FRAMEWORKS:
            return _FRAMEWORKS[name]()
    raise TypeError(f"expected a tensor of {', '.join(_FRAMEWORKS)}; got {type(tensor).__name__}")


# What follows imports a framework only when somebody has called with its tensors, so it is imported
# already.


@cache
def _torch() -> Functions:
    import torch

    return Functions(
        softmax=torch.nn.functional.softmax,
        mean=torch.mean,
        swapaxes=torch.swapaxes,
        float32=lambda x: x.float(),
        cross_entropies=partial(torch.nn.functional.cross_entropy, reduction="none"),
        backward=_held,
        clear=lambda optimizer: optimizer.zero_grad(),
    )


@cache
def _paddle() -> Functions:
    import paddle

    return Functions(
        softmax=paddle.nn.functional.softmax,
        mean=paddle.mean,
        swapaxes=paddle.swapaxes,
        float32=lambda x: x.astype("float32"),
        cross_entropies=partial(paddle.nn.functional.cross_entropy, reduction="none"),
        backward=_held,
        clear=lambda optimizer: optimizer.clear_grad(),
    )


@cache
def _mindspore() -> Functions:
    import mindspore

    def backward(
        compute: Callable[[], tuple[Any, Any]], parameters: Sequence[Any], optimizer: Any
    ) -> tuple[Any, Any]:
        (_, loss), gradients = mindspore.value_and_grad(
            compute, None, optimizer.parameters, has_aux=True
        )()
        return loss, gradients

    return Functions(
        softmax=mindspore.ops.softmax,
        mean=mindspore.ops.mean,
        swapaxes=mindspore.ops.swapaxes,
        float32=lambda x: x.astype(mindspore.float32),
        cross_entropies=partial(mindspore.ops.cross_entropy, reduction="none"),
        backward=backward,
        clear=lambda optimizer: None,  # gradients are values: there are none to clear
    )


@cache
def _tensorflow() -> Functions:
    import tensorflow as tf

    def backward(
        compute: Callable[[], tuple[Any, Any]], parameters: Sequence[Any], optimizer: Any
    ) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            scaled, loss = compute()
        if not optimizer.built:
            optimizer.build(parameters)
        return loss, tape.gradient(scaled, parameters)

    return Functions(
        softmax=tf.nn.softmax,
        mean=tf.reduce_mean,
        swapaxes=lambda x, *axes: tf.experimental.numpy.swapaxes(x, *axes),
        float32=lambda x: tf.cast(x, tf.float32),
        cross_entropies=lambda logits, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits
        ),
        backward=backward,
        clear=lambda optimizer: None,
    )


def _held(
    compute: Callable[[], tuple[Any, Any]], parameters: Sequence[Any], optimizer: Any
) -> tuple[Any, Any]:
    """PyTorch and Paddle: parameters hold their gradients, and nobody hands them over."""
    scaled, loss = compute()
    scaled.backward()
    return loss, None


_FRAMEWORKS: dict[str, Callable[[], Functions]] = {
    "torch": _torch,
    "paddle": _paddle,
    "mindspore": _mindspore,
    "tensorflow": _tensorflow,
    "keras": _tensorflow,  # its variables
}
