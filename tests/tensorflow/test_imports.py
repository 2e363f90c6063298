"""A user's program imports no more than it needs."""

from __future__ import annotations

from elsewhere import forked, python

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
    """On a GPU, JAX would take most of the memory from TensorFlow."""
    assert forked("tensorflow", STARTED).split() == ["False"]


WITHOUT_KERAS = """
import sys
import tensorflow as tf
import unamp

x = tf.ones([2, 2])
with unamp.autocast(level="O2", dtype="bfloat16"):
    dtypes = [(x @ x).dtype.name, tf.function(lambda x: x @ x)(x).dtype.name, (x + x).dtype.name]
print(*dtypes, (x @ x).dtype.name, "keras" in sys.modules)
"""


def test_regions_work_where_keras_is_not_imported():
    """TensorFlow imports Keras 3, except where the environment asks for Keras 2."""
    said = python("-c", WITHOUT_KERAS, TF_USE_LEGACY_KERAS="1")
    assert said.split() == ["bfloat16", "bfloat16", "bfloat16", "float32", "False"]
