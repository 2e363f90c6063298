"""Fixtures of PyTorch's tests: no test leaves a region, a patch or other state behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before inductor reads it: it would start other processes to compile in, of which each imports
# PyTorch. Headers that are compiled once for all kernels take longer than the few kernels here.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

import pytest
import torch
from unamp_torch import control_flow, patches, transforming
from unamp_torch.activation import Activation
from unamp_torch.state import thread

import unamp

sys.path.insert(0, str(Path(__file__).parent))  # for `decorated`, which two files import
import no_gpu

torch.set_num_threads(1)
collect_ignore = no_gpu.FILES

#: The device types whose native autocast state a test must restore. Builds for CPU or CUDA have no
#: devices of `maia` and of most others.
DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "xla", "hpu", "mtia", "ipu", "maia")


def pytest_configure(config: pytest.Config) -> None:
    # The second of two runs, with compiled kernels, leaves out the tests with either of these
    # marks.
    config.addinivalue_line(
        "markers",
        "either_kernels: no region opens but in a trace, whose regions and kernels are always in "
        "Python, or the test says itself which kernels its programs take",
    )
    config.addinivalue_line(
        "markers",
        "beside_kernels: regions open, and what is asked is what Python makes around them, "
        "the same with either kernels: a dialect's words, where a scale moves, "
        "what a search tries, a command's text, what the suite notices. "
        "That both kernels cast alike, and both kinds of region open and close alike, "
        "is what the tests without a mark ask",
    )


@pytest.fixture(autouse=True)
def kernels_matter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test marked `either_kernels` that opens a region outside of a trace.

    Only the run with the kernels in Python can notice one: that run has all tests.
    """
    enter = Activation.enter

    def in_a_trace(self: Activation) -> object:
        return (
            enter(self)
            if thread.sink is not None
            else pytest.fail("kernels matter here: take either_kernels away")
        )

    with pytest.MonkeyPatch.context() as patch:
        # not the test's own `monkeypatch`: it is undone before other fixtures look at what is left
        if request.node.get_closest_marker("either_kernels"):
            patch.setattr(Activation, "enter", in_a_trace)
        yield


def _native_state() -> dict[str, Any]:
    state: dict[str, Any] = {f"{d} on": torch.is_autocast_enabled(d) for d in DEVICE_TYPES}
    state |= {f"{d} dtype": torch.get_autocast_dtype(d) for d in DEVICE_TYPES}
    state["cache"] = torch.is_autocast_cache_enabled()
    torch.autocast_increment_nesting()
    state["nesting"] = torch.autocast_decrement_nesting()
    return state


def _attributes() -> dict[str, Any]:
    """Return the object at every place that unamp patches while a region is open.

    Only modules that are imported have such places.
    """
    found = {}
    for hook in patches.HOOKS:
        module = sys.modules.get(hook.module)
        if module is not None:
            found[f"{hook.module}.{hook.name}"] = getattr(module, hook.name)
    found |= {
        f"{module.__name__}.{name}": getattr(module, name)
        for module, name in transforming._TAKING_OFF
    }
    for name, function in control_flow._MAKING_GRAPHS:
        found[f"{name}.{function}"] = getattr(sys.modules[name], function)
    return found


@pytest.fixture
def native_state() -> Callable[[], dict[str, Any]]:
    """Return a function that gives the whole state of native autocast in this thread."""
    return _native_state


@pytest.fixture
def attributes() -> Callable[[], dict[str, Any]]:
    """Return a function that gives the object at every place that unamp patches."""
    return _attributes


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    torch.manual_seed(0)
    state, before, plan = _native_state(), _attributes(), thread.plan
    yield
    assert unamp.current_policy() is None, "a region is still open"
    assert thread.plan is plan, "a plan is still in force"
    after = _attributes()
    assert {name: after[name] for name in before} == before, "a hook is still installed"
    assert _native_state() == state, "native autocast is not as it was"
