"""TensorFlow's words for devices, and two logical devices in one region."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import absent
import pytest
import tensorflow as tf

import unamp


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


@pytest.mark.parametrize("named", ["GPU:0", "/device:TPU:3", tf.DeviceSpec(device_type="GPU"), "cuda"])
def test_devices_that_are_not_there(named: object, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.ones((2, 2))
    absent.nothing_is_in_force_on_it(
        named, "tensorflow has CPU", lambda: (x @ x).dtype, tf.bfloat16, monkeypatch, framework="tensorflow"
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("NPU:0", "unknown device_type 'NPU:0'.*tensorflow has CPU"),
        ("mps", "unknown device_type 'mps'.*tensorflow has CPU"),
    ],
)
def test_words_for_no_device(named: object, said: str) -> None:
    absent.a_word_for_no_device_is_refused(named, said)


def test_two_logical_devices() -> None:
    """See the script: a process has its logical devices from its start on."""
    ran = subprocess.run([sys.executable, Path(__file__).parent / "two_devices.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
