"""A JAX whose private parts behave otherwise is refused before the first region."""

from __future__ import annotations

import jax
import pytest
from jax._src import core
from unamp_jax import adapter
from unamp_jax.hooks import HOOKS

import unamp
from unamp import amp_warnings


def bind_that_asks_nobody(self, *args, **params):
    """Bind a primitive as a changed JAX could: same name, but without asking the hook."""
    trace = core.trace_ctx.trace
    with core.set_current_trace(core.eval_trace):
        return trace.process_primitive(self, args, params)


def test_this_version_passes():
    adapter.probe()


def test_a_bind_that_no_longer_asks_is_noticed(monkeypatch):
    monkeypatch.setattr(core.Primitive, "bind", bind_that_asks_nobody)
    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=rf"jax {jax.__version__} has no hook that a primitive still asks",
    ):
        adapter.probe()


def test_a_loop_that_no_longer_asks_is_noticed(monkeypatch):
    from unamp_jax import control_flow

    monkeypatch.setattr(control_flow, "_scan_body", lambda function: function())
    with pytest.raises((unamp.FrameworkNotSupported, TypeError), match="scan"):
        adapter.probe()


def test_a_newer_version_warns_once(monkeypatch):
    monkeypatch.setattr(amp_warnings, "_given", set())
    with pytest.warns(
        unamp.AmpWarning, match=r"jax 0\.99\.0 is newer than any that unamp was examined with"
    ):
        amp_warnings.newer_than_examined("jax", "0.99.0", HOOKS.examined)
    amp_warnings.newer_than_examined("jax", "0.99.0", HOOKS.examined)
    amp_warnings.newer_than_examined("jax", jax.__version__, jax.__version__)
