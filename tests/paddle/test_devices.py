"""Paddle's words and objects for devices are known."""

from __future__ import annotations

import paddle
import pytest
from absent import test_devices_that_are_not_there, test_words_for_no_device  # noqa: F401

import unamp

HAS, ABSENT = "paddle has cpu", ("xpu", "xpu:1", "gpu", "cuda")
NO_DEVICES = {named: f"unknown device_type '{named}'.*paddle has cpu" for named in ("npu:0", "GPU")}


@pytest.mark.parametrize("named", ["cpu", "cpu:0", paddle.CPUPlace(), paddle.ones([1]).place])
def test_a_device_in_paddles_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    with region:
        assert (paddle.ones([2, 2]) @ paddle.ones([2, 2])).dtype == paddle.bfloat16


def test_what_is_no_device() -> None:
    with pytest.raises(
        TypeError,
        match=(
            "an imported framework's object for a device, or None, "
            "not Tensor; valid.*paddle has cpu"
        ),
    ):
        unamp.autocast(paddle.ones([1]))
