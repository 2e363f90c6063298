"""MindSpore's words for devices. There are no objects for them."""

from __future__ import annotations

import mindspore
import pytest
from mindspore import ops

import unamp


@pytest.mark.parametrize("named", ["CPU", "CPU:0", "cpu"])
def test_a_device_in_mindspores_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    x = ops.ones((2, 2), mindspore.float32)
    with region:
        assert ops.matmul(x, x).dtype == mindspore.bfloat16


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("Ascend", "mindspore finds no device 'Ascend' here; it has CPU"),
        ("Ascend:1", "mindspore finds no device 'Ascend' here"),
        ("GPU", "mindspore finds no device 'GPU' here"),
        ("ascend", "unknown device_type 'ascend'.*mindspore has CPU"),
        ("Ascend:", "unknown device_type 'Ascend:'"),
    ],
)
def test_devices_that_are_not_there(named: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unamp.autocast(named)
    assert unamp.current_policy() is None
