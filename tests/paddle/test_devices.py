"""Paddle's words and objects for devices."""

from __future__ import annotations

import absent
import paddle
import pytest

import unamp


@pytest.mark.parametrize("named", ["cpu", "cpu:0", paddle.CPUPlace(), paddle.ones([1]).place])
def test_a_device_in_paddles_words(named: object) -> None:
    region = unamp.autocast(named)
    assert (region.device, region.policy.dtype) == ("cpu", "bfloat16")
    with region:
        assert (paddle.ones([2, 2]) @ paddle.ones([2, 2])).dtype == paddle.bfloat16


@pytest.mark.parametrize("named", ["xpu", "xpu:1", "gpu", "cuda"])
def test_devices_that_are_not_there(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = paddle.ones([2, 2])
    absent.nothing_is_in_force_on_it(named, "paddle has cpu", lambda: (x @ x).dtype, paddle.bfloat16, monkeypatch)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("npu:0", "unknown device_type 'npu:0'.*paddle has cpu"),
        ("GPU", "unknown device_type 'GPU'.*paddle has cpu"),
    ],
)
def test_words_for_no_device(named: object, said: str) -> None:
    absent.a_word_for_no_device_is_refused(named, said)


def test_what_is_no_device() -> None:
    with pytest.raises(
        TypeError, match="an imported framework's object for a device, or None, not Tensor; valid.*paddle has cpu"
    ):
        unamp.autocast(paddle.ones([1]))
