"""A library on JAX whose private parts have changed is named in a warning, with its version.

A library that has all parts is not named.
"""

from __future__ import annotations

import sys
import warnings

import equinox
import keras
import optax
import pytest
from flax import linen, nnx
from unamp_jax import patches

import unamp
from unamp import amp_warnings
from unamp.adapter.patching import find

HOOKS = {
    "equinox": ("equinox.internal._loop.loop", "scan"),
    "equinox, what makes modules": ("equinox._module._module", "_ModuleMeta"),
    "flax.linen": ("flax.core.scope", "Scope.param"),
    "flax.nnx": ("flax.nnx.pytreelib", "PytreeMeta"),
    "keras": ("keras", "Layer.add_weight"),
}


@pytest.fixture(autouse=True)
def _looked_at_anew(monkeypatch):
    """Have unamp check the libraries again, in the test and after it."""
    monkeypatch.setattr(amp_warnings, "_given", set())
    patches._of_library.cache_clear()
    yield
    patches._of_library.cache_clear()


@pytest.mark.parametrize("library", HOOKS)
def test_a_private_part_that_is_gone_is_named(library, monkeypatch):
    module, path = HOOKS[library]
    owner, _, name = path.rpartition(".")
    monkeypatch.delattr(find(module, owner) if owner else sys.modules[module], name)
    package = sys.modules[module.partition(".")[0]]
    said = (
        rf"{package.__name__} {package.__version__} has no {module}\.{path}, which unamp replaces"
    )
    with pytest.warns(unamp.AmpWarning, match=said), unamp.autocast(dtype="bfloat16"):
        pass


def test_a_module_that_moved_is_named(monkeypatch):
    monkeypatch.setitem(
        patches._LATER, "optax", (("optax._moved", "function", lambda original: original),)
    )
    said = rf"optax {optax.__version__} has no optax\._moved\.function"
    with pytest.warns(unamp.AmpWarning, match=said), unamp.autocast(dtype="bfloat16"):
        pass


def test_these_versions_have_all():
    assert {linen.__name__, nnx.__name__, optax.__name__, equinox.__name__, keras.__name__} <= {
        *patches.libraries()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unamp.autocast(dtype="bfloat16"):
            pass
