"""Fixtures of TensorFlow's tests: no test leaves a region or a patch behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `decorated`
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import pytest
import tensorflow as tf

# Set before TensorFlow computes: two devices, for strategies with replicas.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

from tensorflow.python import pywrap_tfe  # noqa: E402
from unamp_tensorflow import finding, patches  # noqa: E402
from unamp_tensorflow.casting import execute  # noqa: E402
from unamp_tensorflow.state import thread  # noqa: E402

from unamp.adapter.replacing import CodePatch  # noqa: E402


def patched() -> list[str]:
    """Return the hooks that are not as TensorFlow made them."""
    changes = [
        *patches._patches().patches,
        *(each.patch for each in (*finding.functions(), *finding.keras())),
    ]
    found = [c.function.__qualname__ for c in changes if isinstance(c, CodePatch) and c.applied]
    return found + ["TFE_Py_FastPathExecute"] * (pywrap_tfe.TFE_Py_FastPathExecute is not execute)


@pytest.fixture(autouse=True)
def _untouched():
    tf.random.set_seed(0)
    np.random.seed(0)
    yield
    assert thread.plan is None
    assert thread.sink is None
    assert thread.parameters is None
    assert not thread.recorded
    assert patches.installed.open == 0
    assert patched() == []


@pytest.fixture
def matrix():
    """Return a matrix whose powers every kernel computes to the same bits, in float32 and low.

    Its numbers are 1 and -1, some with a fraction that rounding to a low dtype removes. Where one
    factor of a product has a fraction, the other has none, so float32 holds products and their
    partial sums. A low dtype holds sums up to 256.
    """
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (4, 4))
    signs[2:, :2] *= 1 + 2.0**-13
    return tf.constant(signs, tf.float32)
