"""Paddle's words and objects for devices."""

from __future__ import annotations

import paddle
import pytest

import unamp


@pytest.mark.parametrize("named", ["cpu", "cpu:0", paddle.CPUPlace(), paddle.ones([1]).place])
def test_a_device_in_paddles_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    with region:
        assert (paddle.ones([2, 2]) @ paddle.ones([2, 2])).dtype == paddle.bfloat16


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("xpu", "paddle finds no device 'xpu' here; it has cpu"),
        ("xpu:1", "paddle finds no device 'xpu' here; it has cpu"),
        ("npu:0", "unknown device_type 'npu:0'.*paddle has cpu"),
        ("GPU", "unknown device_type 'GPU'.*paddle has cpu"),
    ],
)
def test_devices_that_are_not_there(named: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unamp.autocast(named)
    assert unamp.current_policy() is None


def test_what_is_no_device() -> None:
    with pytest.raises(
        TypeError, match="an imported framework's object for a device, or None, not Tensor; valid.*paddle has cpu"
    ):
        unamp.autocast(paddle.ones([1]))
