"""MindSpore's words for devices. There are no objects for them."""

from __future__ import annotations

import absent
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


@pytest.mark.parametrize("named", ["Ascend", "Ascend:1", "GPU", "cuda", "gpu:0"])
def test_devices_that_are_not_there(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ops.ones((2, 2), mindspore.float32)
    absent.nothing_is_in_force_on_it(
        named, "mindspore has CPU", lambda: ops.matmul(x, x).dtype, mindspore.bfloat16, monkeypatch
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ascend", "unknown device_type 'ascend'.*mindspore has CPU"),
        ("Ascend:", "unknown device_type 'Ascend:'"),
    ],
)
def test_words_for_no_device(named: object, said: str) -> None:
    absent.a_word_for_no_device_is_refused(named, said)
