"""Fixtures of JAX's tests: no test leaves a region or a patch behind."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"
# Expected numbers are those of the CPU's kernels, and replicas are made of the CPU. Conformance
# tests GPUs.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Set before JAX reads it: four replicas, and little time to optimise programs that run once.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
)
os.environ["XLA_FLAGS"] += (
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import equinox  # noqa: F401 - a library that is imported has its layers patched
import flax.linen
import flax.nnx  # noqa: F401
import jax
import optax  # noqa: F401
import pytest
from jax._src import core, custom_derivatives
from unamp_jax import patches
from unamp_jax.conformance.calling import PROGRAMS
from unamp_jax.spellings import libraries
from unamp_jax.state import CONTEXT, thread

from unamp.adapter.replacing import CodePatch

# Equal programs of different tests are compiled once, and written down in one context.
PROGRAMS.compile_fast()

OWN = (
    core.Primitive.bind_with_trace,
    custom_derivatives.custom_jvp.__call__,
    custom_derivatives.custom_vjp.__call__,
)


def patched() -> list[str]:
    """Return the names of the functions that are not as JAX made them."""
    groups = [patches._hooks(), *(patches._of_library(name) for name in libraries())]
    changes = [patch for group in groups for patch in group.patches]
    found = [c.function.__qualname__ for c in changes if isinstance(c, CodePatch) and c.applied]
    now = (
        core.Primitive.bind_with_trace,
        custom_derivatives.custom_jvp.__call__,
        custom_derivatives.custom_vjp.__call__,
    )
    return found + ["class attributes"] * (now != OWN)


@pytest.fixture(autouse=True)
def _untouched():
    yield
    assert CONTEXT.value is None
    assert thread.sink is None
    assert patches.installed.open == 0
    assert patched() == []


@pytest.fixture
def matrix():
    return jax.random.normal(jax.random.key(0), (4, 4))
