"""A user imports no more than the user needs."""

from __future__ import annotations

from elsewhere import forked

EVERYDAY = """
import sys
import tensorflow as tf
import unamp

x = tf.ones([2, 2])
with unamp.trace() as trace, unamp.autocast(dtype="bfloat16", allow="add", deny=[tf.nn.softmax]):
    tf.function(lambda x: tf.nn.softmax(x @ x + x))(x @ x)
assert [record.compute for record in trace.records] == ["bfloat16"]
unamp.explain(unamp.Policy(), "tensorflow", "cpu")
unamp.GradScaler().scale(x)
print("unamp_tensorflow.adapter" in sys.modules, *(name for name in sys.modules if "conformance" in name))
"""  # noqa: E501


def test_a_user_loads_nothing_of_the_conformance_suite():
    assert forked("tensorflow", EVERYDAY).split() == ["True"]


STARTED = """
import sys
import tensorflow as tf
import unamp

assert "jax" in sys.modules  # TensorFlow imports it, where it is installed
with unamp.autocast(dtype="float16"):
    tf.matmul(tf.ones([2, 2]), tf.ones([2, 2]))
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""


def test_a_region_does_not_start_jax_on_a_device():
    """On a GPU that would take most of its memory from TensorFlow."""
    assert forked("tensorflow", STARTED).split() == ["False"]
