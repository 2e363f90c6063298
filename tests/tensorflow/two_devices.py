"""One policy on two logical devices of TensorFlow trains a network to the same bits.

Copies between the devices keep their dtypes.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

import unamp  # noqa: E402
from unamp import Policy  # noqa: E402

FIRST, SECOND = (device.name for device in tf.config.list_logical_devices())


def step(first: str, second: str, policy: Policy) -> tuple[list[str], list[bytes]]:
    """Return the dtypes and bits of a training step; half of the network is on each device."""
    with tf.device(first):
        x, w = (
            tf.reshape(tf.linspace(-1.0, 1.0, 24), (3, 8)),
            tf.Variable(tf.reshape(tf.linspace(-1.0, 1.0, 64), (8, 8))),
        )
    with tf.device(second):
        v = tf.Variable(tf.reshape(tf.linspace(1.0, -1.0, 32), (8, 4)))
    with unamp.policy_region(policy), tf.GradientTape() as tape:
        with tf.device(first):
            hidden = tf.nn.gelu(x @ w)
        with tf.device(second):
            moved = tf.identity(hidden)
            assert moved.dtype == hidden.dtype
            out = tf.nn.softmax(moved @ v)
            loss = tf.reduce_sum(out * out)
    grads = tape.gradient(loss, [w, v])
    assert hidden.device.endswith(first.removeprefix("/")), (hidden.device, first)
    assert out.device.endswith(second.removeprefix("/")), (out.device, second)
    found = [hidden, out, loss, *grads]
    return [tensor.dtype.name for tensor in found], [tensor.numpy().tobytes() for tensor in found]


for level in ("O1", "O2", "O3", "OD"):
    for dtype in ("float16", "bfloat16"):
        for preset in ("unamp", "tensorflow"):
            policy = Policy(level, dtype, preset=preset)
            alone = step(FIRST, FIRST, policy)
            assert dtype in alone[0] or level == "OD", policy
            for places in ((FIRST, SECOND), (SECOND, FIRST), (SECOND, SECOND)):
                assert step(*places, policy) == alone, (places, policy)

for named in (SECOND, tf.config.list_logical_devices()[1], "CPU:1"):
    with unamp.autocast(named, "bfloat16"), tf.device(SECOND):
        assert (tf.ones((2, 2)) @ tf.ones((2, 2))).dtype == tf.bfloat16
