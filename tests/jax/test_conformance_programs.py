"""XLA compiles each program of the suite once, although several functions contain it.

Processes other than the suite's are not affected.
"""

import jax
import numpy as np
import pytest
from elsewhere import python
from jax import export, lax
from jax._src import compiler
from unamp_conformance.subjects import Subject
from unamp_jax.conformance.calling import PROGRAMS, compute_as_written

from unamp.policy import Policy

SUBJECT = Subject("jax", "cpu")


@pytest.fixture
def compilations(monkeypatch):
    """Return the list that each compiled program is added to."""
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
    assert len(compilations) > 1  # another shape makes another program


def test_a_gradient_in_a_region_compiles_nothing_for_a_second_look(compilations):
    both = SUBJECT.operations.pull_back(
        lambda leaves, _: (leaves[0] * leaves[0],) * 2, compiled=False
    )
    x = SUBJECT.operations.tensor(np.full((3, 19), 2.0, np.float32))
    result, (gradient,) = both(
        [x], [], lambda real, _: SUBJECT.operations.tensor(np.ones(real.shape, np.float32))
    )
    assert np.array_equal(result, np.full((3, 19), 4.0))
    assert np.array_equal(gradient, np.full((3, 19), 4.0))
    compiled = len(compilations)
    both([x], [], lambda real, _: x)
    assert len(compilations) == compiled


def _looked_at(policy, x):
    """Return the result of an operation in a region and its gradient, from one program."""
    ops = SUBJECT.operations

    def called(leaves, others):
        with SUBJECT.region(policy):
            result = ops["tanh"](*leaves, *others)
        return result, result

    both = ops.pull_back(called, compiled=True)
    return both(
        [x],
        [],
        lambda real, _: ops["cast"](ops.tensor(np.ones(real.shape, np.float32)), str(real.dtype)),
    )


def test_policies_that_come_to_the_same_for_an_operation_share_its_program(compilations):
    x = SUBJECT.operations.tensor(np.full((3, 23), 0.5, np.float32))
    low, (gradient,) = _looked_at(Policy("O1", "bfloat16", allow=("tanh",)), x)
    assert (low.dtype, gradient.dtype) == ("bfloat16", "float32")
    assert len(compilations) == 1
    again, _ = _looked_at(Policy("O1", "bfloat16", preset="paddle", allow=("tanh",)), x)
    assert np.array_equal(low, again)
    assert len(compilations) == 1
    wide, _ = _looked_at(Policy("O1", "bfloat16", deny=("tanh",)), x)
    assert wide.dtype == "float32"
    assert len(compilations) == 2


def test_traces_that_differ_in_a_number_a_dtype_or_an_operation_are_told_apart():
    def compiled(function, x):
        traced = jax.jit(function).trace(x)
        return PROGRAMS.of_trace(traced), traced

    x, table = np.ones(31, np.float32), np.arange(31, dtype=np.float32)
    one, _ = compiled(lambda x: jax.nn.relu(x + 1) @ table, x)
    assert compiled(lambda y: jax.nn.relu(y + 1) @ np.array(table), x)[0] is one
    for function, given in (
        (lambda x: jax.nn.relu(x + 2) @ table, x),
        (lambda x: jax.nn.relu(x + 1) @ table[::-1], x),
        (lambda x: jax.nn.relu(x - 1) @ table, x),
        (lambda x: table @ jax.nn.relu(x + 1), x.astype("bfloat16")),
        (lambda x: (jax.nn.relu(x + 1) @ table,), x),
    ):
        another, traced = compiled(function, given)
        assert another is not one
        assert jax.tree.all(jax.tree.map(np.array_equal, another(given), function(given))), traced


def test_a_program_of_forward_alone_has_the_result_and_no_gradients():
    x = SUBJECT.operations.tensor(np.full((3, 29), 0.5, np.float32))
    both = SUBJECT.operations.pull_back(
        lambda leaves, others: (others[0], others[0] * len(leaves)), compiled=True
    )
    result, gradients = both([], [x], lambda *_: pytest.fail("there is nothing to pull back"))
    assert np.array_equal(result, np.zeros((3, 29)))
    assert not gradients


def test_a_program_of_forward_and_backward_leaves_out_no_rounding():
    ops = SUBJECT.operations
    x = np.random.default_rng(0).normal(size=(64, 64)).astype("bfloat16")
    both = ops.pull_back(
        lambda leaves, _: ((leaves[0] @ leaves[0]).astype("float32"),) * 2, compiled=True
    )
    found, _ = both(
        [ops.tensor(x)], [], lambda real, _: ops.tensor(np.ones(real.shape, np.float32))
    )
    found = np.asarray(found)
    assert np.array_equal(found, found.astype("bfloat16").astype(np.float32))


def test_who_asks_for_the_operations_alone_keeps_what_the_process_compiles_with():
    code = """
import os, jax, unamp
from jax._src import compiler
from unamp.adapter.registry import adapter_for
before = compiler.compile_or_get_cached, os.environ.get("XLA_FLAGS")
adapter_for("jax").operations()["add"](jax.numpy.ones(3), jax.numpy.ones(3))
assert before == (compiler.compile_or_get_cached, os.environ.get("XLA_FLAGS"))
"""
    python("-c", code)


def _lowered():
    """Return a lowered module with four products.

    Their operands are float32, bfloat16, images of a convolution, and those of a caller who states
    an algorithm.
    """

    def program(x, low):
        images, stated = x[None, None], lax.DotAlgorithmPreset.F32_F32_F32
        return (
            x @ x,
            low @ low,
            lax.conv(images, images, (1, 1), "SAME"),
            lax.dot(x, x, precision=stated),
        )

    x = np.ones((4, 4), np.float32)
    return jax.jit(program).lower(x, x.astype("bfloat16")).compiler_ir()


def test_on_an_accelerator_a_float32_product_that_states_no_precision_has_all_bits():
    module = _lowered()
    assert "HIGHEST" not in str(module)
    compute_as_written(module, compiler.get_compile_options(1, 1))
    assert module.operation.verify()
    products = [line for line in str(module).splitlines() if "precision" in line]
    assert len(products) == 4
    for product in products:
        assert ("HIGHEST" in product) == ("bf16" not in product and "algorithm" not in product)


def test_nor_has_an_exported_one_less_which_does_not_mention_what_it_does_not_state():
    x = np.ones((4, 4), np.float32)
    loaded = export.deserialize(export.export(jax.jit(lambda x: x @ x))(x).serialize())
    module = jax.jit(loaded.call).lower(x).compiler_ir()
    assert "precision" not in str(module)
    compute_as_written(module, compiler.get_compile_options(1, 1))
    assert module.operation.verify()
    assert "precision = [HIGHEST, HIGHEST]" in str(module)


@pytest.mark.parametrize(
    ("flags", "decided"), [("--xla_dump_to=", True), ("--xla_allow_excess_precision=true", False)]
)
def test_whether_a_compiler_leaves_out_a_rounding_is_decided_unless_the_environment_does(
    monkeypatch, flags, decided
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    options = compiler.get_compile_options(1, 1)
    compute_as_written(_lowered(), options)
    assert (("xla_allow_excess_precision", False) in options.env_option_overrides) == decided


def test_a_program_that_is_computed_as_it_is_written_rounds(compilations, monkeypatch):
    real = PROGRAMS._compile

    def as_written(backend, program, devices, options, *rest):
        compute_as_written(program, options)
        return real(backend, program, devices, options, *rest)

    monkeypatch.setattr(PROGRAMS, "_compile", as_written)
    x = SUBJECT.operations.tensor(np.random.default_rng(0).normal(size=(64, 64)).astype("bfloat16"))
    found = np.asarray(jax.jit(lambda x: (x @ x).astype("float32"))(x))
    assert np.array_equal(found, found.astype("bfloat16").astype(np.float32))
