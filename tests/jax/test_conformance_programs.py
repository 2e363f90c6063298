"""The suite's own calls of JAX: XLA compiles a program once, whoever asks for it, and in nobody else's process otherwise."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from unamp_conformance.subjects import Subject
from unamp_jax.conformance.calling import PROGRAMS

SUBJECT = Subject("jax", "cpu")


@pytest.fixture
def compilations(monkeypatch):
    """Return the programs that are compiled."""
    _ = SUBJECT.operations
    real, seen = PROGRAMS._compile, []
    monkeypatch.setattr(PROGRAMS, "_compile", lambda *args: seen.append(args[1]) or real(*args))
    return seen


def _program():
    def program(x):
        return x * 3 + 1

    return jax.jit(program)


def test_a_program_of_two_functions_is_compiled_once(compilations):
    x = SUBJECT.operations.tensor(np.ones((3, 17), np.float32))
    assert np.array_equal(_program()(x), _program()(x))
    assert len(compilations) == 1
    _program()(x[:2])
    assert len(compilations) > 1  # of another shape it is another


def test_a_gradient_in_a_region_compiles_nothing_for_a_second_look(compilations):
    both = SUBJECT.operations.pull_back(lambda leaves, _: (leaves[0] * leaves[0],) * 2, compiled=False)
    x = SUBJECT.operations.tensor(np.full((3, 19), 2.0, np.float32))
    result, (gradient,) = both([x], [], lambda real, _: SUBJECT.operations.tensor(np.ones(real.shape, np.float32)))
    assert np.array_equal(result, np.full((3, 19), 4.0))
    assert np.array_equal(gradient, np.full((3, 19), 4.0))
    compiled = len(compilations)
    both([x], [], lambda real, _: x)
    assert len(compilations) == compiled


def test_who_asks_for_the_operations_alone_keeps_what_the_process_compiles_with():
    code = """
import os, jax, unamp
from jax._src import compiler
from unamp.adapter.registry import adapter_for
before = compiler.compile_or_get_cached, os.environ.get("XLA_FLAGS")
adapter_for("jax").operations()["add"](jax.numpy.ones(3), jax.numpy.ones(3))
assert before == (compiler.compile_or_get_cached, os.environ.get("XLA_FLAGS"))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
