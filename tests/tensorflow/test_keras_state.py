"""State that Keras keeps is float32 in a region on TensorFlow, and so are batches of arrays."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_state import *  # noqa: F403

from unamp import Policy, policy_region


class Given(keras.Model):
    """A model that computes nothing, and keeps the batches that it is given."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def train_step(self, data):
        self.batches.append(data)
        return {"loss": tf.zeros(())}

    test_step = train_step

    def predict_step(self, data):
        self.batches.append(data)
        return tf.zeros((8, 1))


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_batches_of_arrays_are_what_was_passed(level):
    many = np.arange(70_001, 70_009, dtype="float32")[:, np.newaxis]  # rounded by both low dtypes
    weighted = tf.data.Dataset.from_tensors((many, tf.zeros(8, tf.int32)))
    model = Given()
    model.compile(run_eagerly=True)
    with policy_region(Policy(level, "bfloat16")):
        model.fit(many, many, sample_weight=many, shuffle=False, verbose=0)
        model.evaluate(many, many, verbose=0)
        model.predict(many, verbose=0)
        model.fit(weighted, class_weight={0: 70_001.0}, verbose=0)
    *arrays, (_, _, weights) = model.batches
    tensors = tf.nest.flatten(arrays)
    assert len(tensors) == 3 + 2 + 1
    for found in tensors:
        np.testing.assert_array_equal(found, many, strict=True)
    np.testing.assert_array_equal(weights, np.full(8, 70_001.0, "float32"), strict=True)
