"""TensorFlow's words for devices are known, and one region covers two logical devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from absent import test_devices_that_are_not_there, test_words_for_no_device  # noqa: F401
from elsewhere import python

import unamp

HAS, ABSENT = (
    "tensorflow has CPU",
    ("GPU:0", "/device:TPU:3", tf.DeviceSpec(device_type="GPU"), "cuda"),
)
LIMITS = {"framework": "tensorflow"}  # other frameworks are imported by now
NO_DEVICES = {
    named: f"unknown device_type '{named}'.*tensorflow has CPU" for named in ("NPU:0", "mps")
}


@pytest.mark.parametrize(
    "named",
    [
        "CPU",
        "CPU:0",
        "CPU:1",
        "/cpu:0",
        "/device:CPU:1",
        tf.DeviceSpec(device_type="CPU"),
        tf.config.list_physical_devices()[0],
    ],
)
def test_a_device_in_tensorflows_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    with region:
        assert (tf.ones((2, 2)) @ tf.ones((2, 2))).dtype == tf.bfloat16


def test_two_logical_devices() -> None:
    """Run the script: a process must choose its logical devices at its start."""
    python(Path(__file__).parent / "two_devices.py")
