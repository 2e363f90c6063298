"""Devices that are absent, in every framework: a region for one is off, and warns once.

Regions for other devices are not affected. A word that names no device raises an error.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import unamp
from unamp import amp_warnings, regions
from unamp.adapter.registry import adapter_for


def a_word_for_no_device_is_refused(
    named: object, said: str, error: type[Exception] = ValueError
) -> None:
    """Check the error of a region for an unknown device; `said` is a pattern of its message."""
    with pytest.raises(error, match=said):
        unamp.autocast(named)
    assert unamp.current_policy() is None


def nothing_is_in_force_on_it(
    named: Any, has: str, run: Any, low: object, monkeypatch: pytest.MonkeyPatch, **limits: Any
) -> None:
    """Check a region for a device that is absent.

    Args:
        named: a word or object for the device.
        has: the devices that the warning names as present.
        run: computes a product on the CPU, and returns its dtype.
        low: that dtype in a region for the CPU.
        monkeypatch: pytest's.
        limits: other arguments of the region.
    """
    monkeypatch.setattr(amp_warnings, "_given", set())
    # a region that was made before is the same object, and would not warn again
    regions._built_once.cache_clear()
    with pytest.warns(
        unamp.AmpWarning,
        match=f"there is no device .* here: {has}; a region for it changes nothing",
    ):
        region = unamp.autocast(named, **limits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unamp.autocast(named, dtype="bfloat16", **limits)
        unamp.autocast(named, enabled=False, **limits)
    before = run()
    with region:
        assert run() == before
        assert not unamp.is_autocast_enabled()
        assert unamp.get_autocast_dtype() is None
    with unamp.autocast("cpu", dtype="bfloat16"):
        assert run() == low
        with region:
            assert run() == low, "a region for another device leaves that for the CPU in force"
    assert unamp.current_policy() is None


# --- tests that a folder imports ------------------------------------------------------------------


def test_devices_that_are_not_there(
    request: pytest.FixtureRequest, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that regions for absent devices are off.

    `ABSENT` of the folder's module has words and objects for them; `HAS` has the present devices.
    """
    module, ops = request.module, adapter_for(framework).operations()
    x = ops.tensor(np.ones((2, 2), np.float32))
    for named in module.ABSENT:
        nothing_is_in_force_on_it(
            named,
            module.HAS,
            lambda: ops.dtype(ops["matmul"](x, x)),
            "bfloat16",
            monkeypatch,
            **getattr(module, "LIMITS", {}),
        )


def test_words_for_no_device(request: pytest.FixtureRequest) -> None:
    """Check `NO_DEVICES` of the folder's module: words for no device, with their messages."""
    for named, said in request.module.NO_DEVICES.items():
        a_word_for_no_device_is_refused(named, said)
