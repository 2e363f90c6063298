"""MindSpore's words for devices are known; MindSpore has no objects for them."""

from __future__ import annotations

import mindspore
import pytest
from absent import test_devices_that_are_not_there, test_words_for_no_device  # noqa: F401
from mindspore import ops

import unamp

HAS, ABSENT = "mindspore has CPU", ("Ascend", "Ascend:1", "GPU", "cuda", "gpu:0")
NO_DEVICES = {
    "ascend": "unknown device_type 'ascend'.*mindspore has CPU",
    "Ascend:": "unknown device_type 'Ascend:'",
}


@pytest.mark.parametrize("named", ["CPU", "CPU:0", "cpu"])
def test_a_device_in_mindspores_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    x = ops.ones((2, 2), mindspore.float32)
    with region:
        assert ops.matmul(x, x).dtype == mindspore.bfloat16
