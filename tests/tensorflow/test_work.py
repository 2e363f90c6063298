"""What a trace tells of a training step of Keras on TensorFlow: see `keras_worked`."""

from __future__ import annotations

import keras_worked as shared


def test_a_training_step_is_the_same_work_on_every_backend() -> None:
    shared.a_training_step_is_the_same_work_on_every_backend()
