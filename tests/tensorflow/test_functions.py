"""Regions hold in graphs: tf.function, AutoGraph, control flow, XLA, tf.data, SavedModel."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import unamp
from unamp import Policy, policy_region

BF16 = Policy("O1", "bfloat16")


def low_product(x):
    """Return a product in bfloat16, computed with explicit casts."""
    return tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(x, tf.bfloat16))


def same(a, b):
    assert a.dtype == b.dtype
    tf.debugging.assert_equal(tf.cast(a, tf.float32), tf.cast(b, tf.float32))


def test_one_trace_for_each_policy_and_none_leaks(matrix):
    traces = []

    @tf.function
    def product(x):
        traces.append(unamp.current_policy())
        return tf.matmul(x, x)

    off = product(matrix).dtype
    with unamp.autocast(dtype="bfloat16"):
        on = product(matrix)
    with unamp.autocast(dtype="float16"):
        half = product(matrix).dtype
    assert product(matrix).dtype == off == tf.float32
    with unamp.autocast(dtype="bfloat16"):
        again = product(matrix)
    same(on, low_product(matrix))
    same(on, again)
    assert half == tf.float16
    assert len(traces) == product.experimental_get_tracing_count() == 3


@pytest.mark.parametrize("jit", [False, True])
def test_a_region_inside_a_function(matrix, jit):
    @tf.function(jit_compile=jit)
    def both(x):
        with unamp.autocast(dtype="bfloat16"):
            fast = tf.matmul(x, x)
            with unamp.autocast(enabled=False):
                exact = tf.matmul(x, x)
        return fast, exact, tf.matmul(x, x)

    fast, exact, after = both(matrix)
    same(fast, low_product(matrix))
    assert (exact.dtype, after.dtype) == (tf.float32, tf.float32)
    assert unamp.current_policy() is None


def test_a_decorated_function_is_still_converted(matrix):
    @tf.function
    @unamp.autocast(dtype="bfloat16")
    def loop(x):
        total = tf.zeros([4, 4])
        for _ in tf.range(3):
            total += tf.matmul(x, x)
        return total

    same(loop(matrix), 3.0 * tf.cast(low_product(matrix), tf.float32))


def test_what_a_graph_returns_is_not_an_operation_of_the_users(matrix):
    function = tf.function(lambda x: (x + 1.0, tf.identity(x)))
    with unamp.autocast(dtype="bfloat16", allow="identity"):
        assert [each.dtype for each in function(matrix)] == [tf.float32, tf.bfloat16]


# --- control flow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
def test_loops_keep_the_dtype_that_they_start_with(matrix, jit):
    @tf.function(jit_compile=jit)
    def powers(x):
        y = x
        for _ in tf.range(2):
            y = tf.matmul(y, x)
        n = 0
        while n < tf.constant(2):
            y = tf.matmul(y, x)
            n += 1
        return y

    with unamp.autocast(dtype="bfloat16"):
        found = powers(matrix)
    y = matrix
    for _ in range(4):
        y = tf.cast(tf.matmul(tf.cast(y, tf.bfloat16), tf.cast(matrix, tf.bfloat16)), tf.float32)
    assert found.dtype == tf.float32
    same(found, y)


def test_a_loop_over_a_dataset(matrix):
    @tf.function
    def total(x):
        y = x
        for item in tf.data.Dataset.from_tensors(x).repeat(3):
            y = tf.matmul(y, item)
        return y

    with unamp.autocast(dtype="bfloat16"):
        assert total(matrix).dtype == tf.float32


def test_branches_that_differ_are_widened_and_others_are_not(matrix):
    @tf.function
    def choose(x, first):
        if first:
            differ, agree = tf.matmul(x, x), tf.matmul(x, x)
        else:
            differ, agree = x, tf.matmul(x, x + 0.0)
        return differ, agree

    @tf.function
    def swapped(x, first):
        differ = x
        if not first:
            differ = tf.matmul(x, x)
        return differ

    with unamp.autocast(dtype="bfloat16"):
        for first in (True, False):
            differ, agree = choose(matrix, tf.constant(first))
            assert (differ.dtype, agree.dtype) == (tf.float32, tf.bfloat16)
            assert swapped(matrix, tf.constant(first)).dtype == tf.float32
        same(choose(matrix, tf.constant(True))[0], tf.cast(low_product(matrix), tf.float32))


def test_cond_case_and_while_loop_by_name(matrix):
    @tf.function
    def by_name(x, n):
        a = tf.cond(n > 1, lambda: tf.matmul(x, x), lambda: x)
        b = tf.switch_case(n, [lambda: x, lambda: tf.matmul(x, x), lambda: tf.matmul(x, x)])
        _, c = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, tf.matmul(y, x)), (0, x))
        d = tf.cond(n > 1, lambda: tf.matmul(x, x), lambda: tf.matmul(x, x))
        return a, b, c, d

    with unamp.autocast(dtype="bfloat16"):
        found = by_name(matrix, tf.constant(2))
    assert [each.dtype for each in found] == [tf.float32, tf.float32, tf.float32, tf.bfloat16]
    same(found[0], tf.cast(low_product(matrix), tf.float32))


@pytest.mark.parametrize("zero", [0.0, np.float32(0.0)], ids=["python", "numpy"])
def test_a_number_that_is_no_tensor_yet_is_float32_in_branches_and_loops(matrix, zero):
    def first(x):
        return tf.matmul(x, x)[0, 0]

    @tf.function
    def by_name(x, n):
        a = tf.cond(n > 1, lambda: first(x), lambda: zero)
        b = tf.switch_case(n, [lambda: zero, lambda: first(x), lambda: first(x)])
        _, c = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, first(x)), (0, zero))
        return a, b, c

    @tf.function
    def converted(x, n):
        loss, last = zero, zero
        if n > 1:
            loss = first(x)
        for _ in tf.range(n):
            last = first(x)
        return loss, last

    with unamp.autocast(dtype="bfloat16"):
        found = *by_name(matrix, tf.constant(2)), *converted(matrix, tf.constant(2))
    for each in found:
        same(each, tf.cast(low_product(matrix)[0, 0], tf.float32))


@pytest.mark.parametrize("graph", [False, True])
def test_map_fn_returns_the_ragged_dtype_that_was_stated(graph):
    def squares(rows):
        spec = tf.RaggedTensorSpec([None], tf.float32)
        return tf.map_fn(lambda row: tf.einsum("i,i->i", row, row), rows, fn_output_signature=spec)

    with unamp.autocast(dtype="bfloat16"):
        found = (tf.function(squares) if graph else squares)(
            tf.ragged.constant([[1.0, 2.0], [3.0]])
        )
    assert found.dtype == tf.float32
    assert found.to_list() == [[1.0, 4.0], [9.0]]


@pytest.mark.parametrize("graph", [False, True])
def test_scan_map_fn_and_tensor_array(matrix, graph):
    stack = tf.stack([matrix] * 3)

    def run(stack):
        scanned = tf.scan(lambda y, x: tf.matmul(y, x), stack)
        mapped = tf.map_fn(lambda x: tf.matmul(x, x), stack)
        array = (
            tf.TensorArray(tf.float32, 2).write(0, tf.matmul(stack[0], stack[0])).write(1, stack[1])
        )
        return scanned, mapped, array.stack()

    run = tf.function(run) if graph else run
    with unamp.autocast(dtype="bfloat16"):
        scanned, mapped, written = run(stack)
    assert [each.dtype for each in (scanned, mapped, written)] == [tf.float32] * 3
    product = tf.cast(low_product(matrix), tf.float32)
    same(mapped[2], product)
    same(written[0], product)
    same(scanned[1], product)


# --- tf.data, SavedModel, functions made before ---------------------------------------------------


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_dataset_reduced_and_scanned_keeps_the_dtype_of_its_state(matrix, level):
    data = tf.data.Dataset.from_tensors(matrix).repeat(3)

    def add(total, x):
        if tf.reduce_sum(x) > 1e9:  # AutoGraph converts this, as it does outside
            return total
        return total + tf.reduce_sum(tf.matmul(x, x))

    with policy_region(Policy(level, "bfloat16")):
        total = data.reduce(0.0, add)
        scanned = list(
            data.scan(
                initial_state=tf.zeros([4, 4]), scan_func=lambda state, x: (tf.matmul(x, x), state)
            )
        )
    assert total.dtype == tf.float32
    tf.debugging.assert_near(
        total, 3 * tf.reduce_sum(tf.cast(low_product(matrix), tf.float32)), atol=0.5
    )
    assert scanned[0].dtype == tf.float32
    same(scanned[2], tf.cast(low_product(matrix), tf.float32))


def _joined(kind, first, second):
    """Return two datasets joined; the kind decides the order of the elements."""
    if kind == "concatenate":
        return first.concatenate(second)
    if kind == "sample":
        return tf.data.Dataset.sample_from_datasets([first, second], [0.5, 0.5], seed=1)
    return tf.data.Dataset.choose_from_datasets([first, second], tf.data.Dataset.range(2))


@pytest.mark.parametrize("kind", ["concatenate", "sample", "choose"])
@pytest.mark.parametrize("pack", [lambda x: x, lambda x: (x,), lambda x: {"x": x, "n": 1}])
def test_datasets_that_become_one_are_float32_where_they_differ(matrix, kind, pack):
    plain = tf.data.Dataset.from_tensors(matrix)
    with policy_region(BF16):
        low = plain.map(lambda x: tf.matmul(x, x))
        assert low.element_spec.dtype == tf.bfloat16
        both = _joined(kind, plain.map(pack), low.map(pack))
        alike = _joined(kind, low.map(pack), low.map(pack))
    assert tf.nest.flatten(alike.element_spec)[-1].dtype == tf.bfloat16
    assert both.element_spec == plain.map(pack).element_spec
    found = sorted((tf.nest.flatten(each)[-1] for each in both), key=lambda x: x.numpy().tolist())
    product = tf.cast(low_product(matrix), tf.float32)
    expected = sorted((matrix, product), key=lambda x: x.numpy().tolist())
    for value, wanted in zip(found, expected, strict=True):
        same(value, wanted)


def test_ragged_datasets_that_become_one(matrix):
    plain = tf.data.Dataset.from_tensors(tf.RaggedTensor.from_row_lengths(matrix, [1, 0, 3]))
    with policy_region(Policy("O2", "bfloat16")):
        both = [*plain.concatenate(plain.map(lambda x: x * 2.0))]
    assert [each.dtype for each in both] == [tf.float32, tf.float32]
    same(both[0].flat_values, matrix)
    same(both[1].flat_values, tf.cast(tf.cast(matrix, tf.bfloat16) * 2, tf.float32))


def test_datasets_of_other_structures_are_refused_as_outside_of_regions(matrix):
    plain = tf.data.Dataset.from_tensors(matrix)
    with policy_region(BF16), pytest.raises(TypeError, match="Incompatible dataset elements"):
        plain.map(lambda x: (x, x)).concatenate(plain)


@pytest.mark.parametrize("number", [-1.0, tf.constant(-1.0), np.float32(-1)], ids=repr)
def test_what_pads_a_dataset_has_the_dtype_of_its_elements(number):
    with policy_region(Policy("O2", "bfloat16")):
        low = tf.data.Dataset.range(1, 3).map(lambda n: tf.fill([n], 3.0) * 2.0)
        (found,) = low.padded_batch(2, padding_values=number)
        minus = tf.constant(0.5) * -2.0
        assert minus.dtype == tf.bfloat16
        wide = tf.data.Dataset.from_tensors(tf.ones([1])).padded_batch(1, [2], minus)
    assert found.dtype == tf.bfloat16
    same(found, tf.constant([[6.0, -1.0], [6.0, 6.0]], tf.bfloat16))
    same(next(iter(wide)), tf.constant([[1.0, -1.0]]))


@pytest.mark.parametrize(
    "policy", [BF16, BF16.replace(deny="matmul"), Policy("O2", "bfloat16")], ids=repr
)
def test_vectorized_map_computes_as_its_body_says(matrix, policy):
    def rows():
        return tf.vectorized_map(lambda row: tf.tanh(tf.linalg.matvec(matrix, row)), matrix)

    with policy_region(policy):
        found = rows()
        expected = tf.stack([tf.tanh(tf.linalg.matvec(matrix, row)) for row in matrix])
    assert found.dtype == expected.dtype
    tf.debugging.assert_near(tf.cast(found, tf.float32), tf.cast(expected, tf.float32), atol=1e-2)


def test_a_function_that_was_traced_before_is_finished(matrix):
    traced = tf.function(lambda x: tf.matmul(x, x)).get_concrete_function(matrix)
    with unamp.autocast(dtype="bfloat16"):
        assert traced(matrix).dtype == tf.float32


def test_emulated_operations_in_a_graph_under_a_tape(matrix):
    spd = tf.matmul(matrix, matrix, transpose_b=True) + 4.0 * tf.eye(4)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.linalg.cholesky(x)
            total = tf.reduce_sum(y)
        return y, tape.gradient(total, x)

    with policy_region(Policy("O1", "bfloat16", allow="linalg_cholesky")):
        y, slope = gradient(spd)
    assert (y.dtype, slope.dtype) == (tf.bfloat16, tf.float32)
    rounded = tf.cast(tf.cast(spd, tf.bfloat16), tf.float32)
    same(y, tf.cast(tf.linalg.cholesky(rounded), tf.bfloat16))
    with tf.GradientTape() as tape:
        tape.watch(rounded)
        total = tf.reduce_sum(tf.linalg.cholesky(rounded))
    tf.debugging.assert_near(slope, tape.gradient(total, rounded), rtol=1e-2)


def test_results_are_widened_in_graphs_too(matrix):
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.matmul(x, x)
            total = tf.reduce_sum(y)
        return y, tape.gradient(total, x)

    with policy_region(Policy("O1", "bfloat16", widen_results=True)):
        y, slope = gradient(matrix)
    same(y, tf.cast(low_product(matrix), tf.float32))
    assert slope.dtype == tf.float32
    with tf.GradientTape() as tape:
        tape.watch(matrix)
        total = tf.reduce_sum(tf.cast(low_product(matrix), tf.float32))
    same(slope, tape.gradient(total, matrix))


@pytest.mark.parametrize("jit", [False, True])
def test_a_librarys_default_in_a_function_gives_way_to_every_region(matrix, jit):
    @tf.function(jit_compile=jit)
    def library(x):
        with unamp.default_region(Policy(dtype="float16"), like=x):
            return tf.matmul(x, x)

    @tf.function(jit_compile=jit)
    def off_inside(x):
        with unamp.autocast(enabled=False):
            return library(x)

    assert off_inside(matrix).dtype == tf.float32
    for _ in range(2):
        assert library(matrix).dtype == tf.float16
        for policy, expected in [
            (BF16, tf.bfloat16),
            (Policy(enabled=False), tf.float32),
            (Policy("O0"), tf.float32),
        ]:
            with policy_region(policy):
                assert library(matrix).dtype == expected
    with policy_region(Policy(enabled=False), framework="tensorflow"):
        assert library(matrix).dtype == tf.float32
    assert library.experimental_get_tracing_count() == 3


def test_grapplers_own_keeps_a_librarys_default_out_of_graphs(matrix):
    library = tf.function(lambda x: _with_default(x))
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    try:
        assert library(matrix).dtype == tf.float32  # grappler rewrites the operations inside
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


def _with_default(x):
    with unamp.default_region(Policy(dtype="float16"), like=x):
        return tf.matmul(x, x)
