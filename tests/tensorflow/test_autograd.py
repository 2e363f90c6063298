"""Gradients have the dtypes of their forward pass, whatever region is open during backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import unamp
from unamp import Policy, policy_region


@pytest.fixture
def weight(matrix):
    return tf.Variable(matrix + 1.0)


def by_hand(x, w):
    """Return the loss and gradient of a product in bfloat16, with casts written by hand."""
    with tf.GradientTape() as tape:
        y = tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(w, tf.bfloat16))
        loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
    return loss, tape.gradient(loss, w)


def loss_of(x, w):
    return tf.reduce_sum(tf.matmul(x, w) ** 2)


def region():
    return unamp.autocast(dtype="bfloat16")


def same(a, b):
    assert a.dtype == b.dtype == tf.float32
    tf.debugging.assert_equal(a, b)


def test_another_region_during_backward_changes_nothing(matrix, weight):
    with tf.GradientTape() as tape, region():
        loss = loss_of(matrix, weight)
    with policy_region(Policy("O3", "float16")):
        slope = tape.gradient(loss, weight)
    same(slope, by_hand(matrix, weight)[1])
    with tf.GradientTape() as tape:
        loss = loss_of(matrix, weight)
    with region():
        slope = tape.gradient(loss, weight)
    with tf.GradientTape() as plain:
        loss = loss_of(matrix, weight)
    same(slope, plain.gradient(loss, weight))


def test_persistent_tape(matrix, weight):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(matrix)
        with region():
            loss = loss_of(matrix, weight)
    same(tape.gradient(loss, weight), by_hand(matrix, weight)[1])
    assert tape.gradient(loss, matrix).dtype == tf.float32


def test_second_order(matrix, weight):
    def second(inside):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = inside()
            slope = inner.gradient(loss, weight)
            size = tf.reduce_sum(slope**2)
        return outer.gradient(size, weight)

    def ours():
        with region():
            return loss_of(matrix, weight)

    def theirs():
        y = tf.matmul(tf.cast(matrix, tf.bfloat16), tf.cast(weight, tf.bfloat16))
        return tf.reduce_sum(tf.cast(y, tf.float32) ** 2)

    same(second(ours), second(theirs))


@pytest.mark.parametrize("inside", [False, True])
def test_jacobians(matrix, inside):
    def jacobian(x, opened):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            with opened:
                y = tf.matmul(x, x)
        if inside:
            with policy_region(Policy("O3", "float16")):
                return tape.jacobian(y, x), tape.batch_jacobian(y, x)
        return tape.jacobian(y, x), tape.batch_jacobian(y, x)

    for found, exact in zip(
        jacobian(matrix, region()), jacobian(matrix, unamp.autocast(enabled=False)), strict=True
    ):
        assert found.dtype == tf.float32
        tf.debugging.assert_near(found, exact, atol=0.05)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_jacobians_that_are_not_vectorized(matrix, graph, level):
    weight = tf.Variable(matrix)

    def jacobians():
        with policy_region(Policy(level, "bfloat16")):
            low = tf.cast(matrix, tf.bfloat16)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([matrix, low])
                y = tf.matmul(matrix, weight) if level == "O1" else tf.matmul(low, weight)
                z = tf.nn.relu(low)
            assert y.dtype == z.dtype == tf.bfloat16
            return [
                (
                    tape.jacobian(y, [weight, low if level == "O2" else matrix], **way),
                    tape.batch_jacobian(y, low if level == "O2" else matrix, **way),
                    tape.jacobian(z, low, **way),
                )
                for way in ({"experimental_use_pfor": False}, {})
            ]

    found, vectorized = (tf.function(jacobians) if graph else jacobians)()
    assert found[0][0].dtype == tf.float32
    assert found[2].dtype == tf.bfloat16
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(vectorized), strict=True):
        tf.debugging.assert_equal(tf.cast(one, tf.float32), tf.cast(other, tf.float32))


def test_forward_mode(matrix):
    with tf.autodiff.ForwardAccumulator(matrix, tf.ones_like(matrix)) as forward, region():
        y = tf.matmul(matrix, matrix)
    assert y.dtype == tf.bfloat16
    ones = tf.ones_like(matrix)
    tf.debugging.assert_near(
        tf.cast(forward.jvp(y), tf.float32), ones @ matrix + matrix @ ones, atol=0.1
    )


@pytest.mark.parametrize("graph", [False, True])
def test_custom_gradient_may_mix_low_and_float32(matrix, graph):
    @tf.custom_gradient
    def scaled(x):
        factor = tf.fill([4, 4], 3.0)

        def gradient(upstream):
            return upstream * factor

        return tf.matmul(x, tf.eye(4)), gradient

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with region():
                y = scaled(x)
        return y, tape.gradient(y, x)

    y, slope = (tf.function(step) if graph else step)(matrix)
    assert y.dtype == tf.bfloat16
    same(slope, tf.fill([4, 4], 3.0))


class Pair(NamedTuple):
    first: tf.Tensor
    second: tf.Tensor


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_custom_gradient_may_answer_in_any_structure(matrix, graph, nested):
    @tf.custom_gradient
    def product(*inputs):
        first, second = tf.nest.flatten(inputs)

        def gradient(upstream):
            return Pair(
                tf.matmul(upstream, second, transpose_b=True),
                tf.matmul(first, upstream, transpose_a=True),
            )

        return tf.matmul(first, second), gradient

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with region():
                y = product({"a": x, "b": x}) if nested else product(x, x)
        return y, tape.gradient(y, x)

    y, slope = (tf.function(step) if graph else step)(matrix)
    assert (y.dtype, slope.dtype) == (tf.bfloat16, tf.float32)


@pytest.mark.parametrize("graph", [False, True])
def test_custom_gradient_with_variables(matrix, weight, graph):
    factor = tf.Variable(3.0)

    @tf.custom_gradient
    def scaled(x):
        def gradient(upstream, variables=None):
            return upstream * variables[0], [tf.reduce_sum(upstream * tf.cast(x, upstream.dtype))]

        return x * factor, gradient

    def step(x):
        with tf.GradientTape() as tape, region():
            y = scaled(tf.matmul(x, weight))  # takes bfloat16, and returns float32
        return tape.gradient(y, [weight, factor])

    of_weight, of_factor = (tf.function(step) if graph else step)(matrix)
    low = tf.cast(matrix, tf.bfloat16)
    same(
        of_weight,
        tf.cast(
            tf.matmul(low, tf.fill([4, 4], tf.cast(3.0, tf.bfloat16)), transpose_a=True), tf.float32
        ),
    )
    same(
        of_factor, tf.reduce_sum(tf.cast(tf.matmul(low, tf.cast(weight, tf.bfloat16)), tf.float32))
    )


@pytest.mark.parametrize("graph", [False, True])
def test_recompute_grad_hands_a_function_its_own_inputs_again(matrix, weight, graph):
    """At O2, TensorFlow's own operations on the inputs between the two calls would be low.

    Their gradients would be low, too.
    """
    seen = []

    @tf.recompute_grad
    def block(x):
        seen.append(x.dtype)
        return tf.matmul(x, weight)

    def step(x):
        with unamp.autocast(level="O2", dtype="bfloat16"), tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(block(x))
            return tape.gradient(loss, x)

    slope = (tf.function(step) if graph else step)(matrix)
    assert {*seen} == {tf.float32}
    assert len(seen) >= 2
    assert slope.dtype == tf.float32


@pytest.mark.parametrize("graph", [False, True])
def test_recompute_grad_runs_under_the_policy_of_its_forward(matrix, weight, graph):
    seen = []

    @tf.recompute_grad
    def block(x):
        y = tf.matmul(x, weight)
        seen.append(y.dtype)
        return y

    def step():
        with tf.GradientTape() as tape, region():
            loss = tf.reduce_sum(block(matrix) ** 2)
        return loss, tape.gradient(loss, weight)

    loss, slope = (tf.function(step) if graph else step)()
    assert seen == [tf.bfloat16] * len(seen)
    assert len(seen) >= 2
    expected = by_hand(matrix, weight)
    same(loss, expected[0])
    same(slope, expected[1])
    assert unamp.current_policy() is None


def test_embeddings_get_sparse_gradients():
    table = tf.Variable(tf.random.normal([7, 3]))
    with tf.GradientTape() as tape, policy_region(Policy("O3", "bfloat16")):
        rows = tf.nn.embedding_lookup(table, [1, 2, 1])
    slope = tape.gradient(rows, table)
    assert isinstance(slope, tf.IndexedSlices)
    assert slope.dtype == tf.float32


@pytest.mark.parametrize("opened", [
    unamp.autocast(enabled=False), policy_region(Policy("O0")), unamp.autocast(dtype="bfloat16"),
], ids=["off", "O0", "on"])  # fmt: skip
def test_custom_gradient_under_a_trace(matrix, opened):
    @tf.custom_gradient
    def doubled(x):
        return x + x, lambda upstream: upstream * 2.0

    with unamp.trace(), tf.GradientTape() as tape, opened:
        tape.watch(matrix)
        y = doubled(matrix)
    same(tape.gradient(y, matrix), tf.fill([4, 4], 2.0))


@pytest.mark.parametrize(
    "policy",
    [Policy("O2", "float16"), Policy("O3", "bfloat16"), Policy("O1", "float16", allow=["sum"])],
    ids=str,
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_gradients_that_are_clipped_in_a_region_come_to_the_same_bits_as_outside(
    compiled: bool, policy: Policy
) -> None:
    gradients = [tf.fill([1000], 1e4), tf.fill([3], 1e-2), None]

    def clip(gradients: Any) -> Any:
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        return *clipped[:2], norm, tf.linalg.global_norm(gradients)

    call = tf.function(clip) if compiled else clip
    known = call(gradients)
    with policy_region(policy):
        found = call(gradients)
        low = clip([tf.cast(gradients[0], policy.dtype), gradients[1], None])
    for one, other in zip(found, known, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), strict=True)
    assert [each.dtype.name for each in low] == [policy.dtype, "float32", "float32", "float32"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_gradients_that_are_clipped_one_by_one_at_o2_have_a_float32_norm(compiled: bool) -> None:
    def clip(gradient: Any) -> Any:
        return tf.clip_by_norm(gradient, 1.0), tf.compat.v1.clip_by_average_norm(gradient, 1.0)

    call, gradient = tf.function(clip) if compiled else clip, tf.fill([1000], 1e4)
    known = call(gradient)
    with policy_region(Policy("O2", "float16")):
        found = call(gradient)
    for one, other in zip(found, known, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3)
