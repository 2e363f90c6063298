"""Rules hold for tensors that are not one dense array.

They are ragged or sparse tensors, slices of a gradient, and types of a user's own.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from unamp_tensorflow.conformance.tensor_kinds import tensor_kinds

import unamp
from unamp import Policy, policy_region

CALLS = [(kind, op) for kind in tensor_kinds() for op in kind.calls]
IDS = [f"{kind.name}-{op}" for kind, op in CALLS]
MODES = {
    "eager": lambda function: function,
    "graph": lambda function: tf.function(function, autograph=False),
}


#: Inputs, the result and, in a sum, a few partial sums are each rounded to bfloat16 once.
BOUND = 8 * 2.0**-8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "op"), CALLS, ids=IDS)
def test_float32_values_under_an_allow_list(kind, op, mode):
    call = MODES[mode](kind.calls[op])
    with policy_region(Policy("O1", "bfloat16", preset="none", allow=[op])):
        result = call(kind.make("float32", "cpu"))
    if kind.treatments[op] == "followed":
        assert kind.dtype(result) == "bfloat16"
        exact = kind.values(kind.calls[op](kind.make("float32", "cpu")))
        np.testing.assert_allclose(kind.values(result), exact, rtol=BOUND, atol=BOUND)
        assert not np.array_equal(kind.values(result), exact)
    else:
        assert kind.dtype(result) == "float32"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "op"), CALLS, ids=IDS)
def test_low_values_under_a_deny_list(kind, op, mode):
    call = MODES[mode](kind.calls[op])
    with policy_region(Policy("O1", "bfloat16", preset="none", deny=[op])):
        result = call(kind.make("bfloat16", "cpu"))
    if kind.treatments[op] == "followed":
        assert kind.dtype(result) == "float32"
    else:
        assert kind.dtype(result) == "bfloat16"


@pytest.mark.parametrize(
    ("kind", "op"), [(k, op) for k, op in CALLS if k.treatments[op] == "followed"]
)
def test_a_trace_has_what_was_followed(kind, op):
    with (
        policy_region(Policy("O1", "bfloat16", preset="none", allow=[op])),
        unamp.trace(values=True) as trace,
    ):
        kind.calls[op](kind.make("float32", "cpu"))
    assert (op, "bfloat16") in [(record.op, record.compute) for record in trace.records]
    assert all(np.isfinite(record.values.max_abs) for record in trace.records if record.op == op)


def test_a_ragged_number_that_overflows_in_float16():
    twelve = tf.ragged.constant([[12.0, 1.0], [2.0]], dtype=tf.float16)
    for call in (tf.exp, tf.function(lambda t: tf.exp(t))):
        with unamp.autocast(dtype="float16"):
            found = call(twelve)
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found.flat_values[0], np.exp(12.0), rtol=1e-5)
        with unamp.autocast(dtype="float16", allow=["exp"]):
            assert np.isinf(call(twelve).flat_values[0])


def test_a_ban_reaches_a_ragged_tensor():
    ragged = tf.ragged.constant([[0.5, 0.25], [0.125]])
    with (
        policy_region(Policy("O1", "float16", preset="torch-cuda")),
        pytest.raises(unamp.BannedOperation),
    ):
        tf.keras.losses.binary_crossentropy(ragged, ragged)


def test_products_of_a_ragged_tensor_and_weights_of_another_dtype(low):
    ragged = tf.RaggedTensor.from_row_splits(tf.random.normal([3, 2]), [0, 1, 3])
    weights = tf.Variable(tf.random.normal([2, 2, 3]))
    for level in ("O1", "O2", "O3"):
        with policy_region(Policy(level, low.name)):
            assert tf.matmul(ragged, weights).dtype == low
            assert tf.matmul(tf.cast(ragged, low), weights).dtype == low
    with policy_region(Policy("O1", low.name, deny=["matmul"])), tf.GradientTape() as tape:
        product = tf.matmul(tf.cast(ragged, low), weights)
        assert product.dtype == tf.float32
        loss = tf.reduce_sum(product)
    assert tape.gradient(loss, weights).dtype == tf.float32


def test_operators_of_a_sparse_and_a_dense_tensor_widen_where_they_differ(low):
    dense = tf.random.normal([3, 2])
    sparse = tf.SparseTensor([[0, 0], [1, 1]], tf.cast([0.1, 0.7], low), [3, 2])
    for mode in MODES.values():
        with policy_region(Policy("O1", low.name)):
            assert mode(lambda s: s * dense)(sparse).dtype == tf.float32
            assert mode(lambda s: s / dense)(sparse).dtype == tf.float32


def test_gradients_of_an_embedding_are_slices_in_float32(low):
    table, weights = tf.Variable(tf.random.normal([10, 4])), tf.Variable(tf.random.normal([4, 4]))

    def step():
        with tf.GradientTape() as tape, policy_region(Policy("O2", low.name)):
            loss = tf.reduce_sum(tf.matmul(tf.gather(table, [1, 2, 1]), weights))
        return tape.gradient(loss, [table, weights])

    for call in (step, tf.function(step)):
        slices, dense = call()
        assert isinstance(slices, tf.IndexedSlices)
        assert slices.dtype == dense.dtype == tf.float32


def test_low_slices_are_written_to_a_float32_variable(low):
    for mode in MODES.values():
        variable = tf.Variable(tf.zeros([4, 2]))
        ones = tf.cast(tf.ones([1, 2]), low)

        def write(variable=variable, ones=ones):
            variable.scatter_add(tf.IndexedSlices(ones, [1]))
            variable.scatter_sub(sparse_delta=tf.IndexedSlices(ones, [1]))
            variable.scatter_nd_add([[1]], ones)
            variable.scatter_nd_update(indices=[[3]], updates=ones)
            variable.assign_add(delta=tf.cast(tf.ones([4, 2]), low))

        with policy_region(Policy("O3", low.name)):
            mode(write)()
        np.testing.assert_array_equal(variable.numpy()[:, 0], [1, 2, 1, 2])


def test_a_value_of_another_kind_of_number_is_no_business_of_a_region():
    with unamp.autocast(dtype="bfloat16"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.TensorArray(tf.int32, 1).write(0, tf.constant(1.5))
        with pytest.raises((TypeError, ValueError)):
            tf.Variable([1, 2]).assign(tf.constant([1.5, 2.5]))


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_keras_layers_on_sparse_and_ragged_inputs_and_with_masks(level, low):
    keras = tf.keras
    sparse = tf.sparse.from_dense(tf.eye(4))
    ragged = tf.ragged.constant([[1.0, -2.0], [3.0]])
    embedding = keras.layers.Embedding(10, 8, mask_zero=True)
    numbers = tf.constant([[1, 2, 0], [3, 0, 0]])
    with policy_region(Policy(level, low.name)):
        found = [
            keras.layers.Dense(3)(sparse),
            keras.layers.Dense(3)(tf.cast(sparse, low)),
            keras.layers.LSTM(4)(embedding(numbers)),
            keras.layers.MultiHeadAttention(2, 4)(*[embedding(numbers)] * 2),
            keras.layers.ReLU()(tf.cast(ragged, low)),
        ]
    assert [each.dtype for each in found] == [low] * 5


@pytest.mark.parametrize("mode", MODES)
def test_operation_types_of_sparse_tensors_alone_follow_their_rule(mode, low):
    dense = tf.ones([3, 2])
    calls = {
        "sum": lambda s: tf.sparse.reduce_sum(s, axis=1),
        "amax": lambda s: tf.sparse.reduce_max(s, axis=1),
        "softmax": lambda s: tf.sparse.softmax(s).values,
        "add": lambda s: tf.sparse.add(s, dense),
        "mul": lambda s: (s * dense).values,
        "div": lambda s: (s / dense).values,
        "maximum": lambda s: tf.sparse.maximum(s, s).values,
    }
    for op, call in calls.items():
        for given, policy, expected in (
            (tf.float32, Policy(dtype=low.name, allow=[op]), low),
            (low, Policy(dtype=low.name, deny=[op]), tf.float32),
        ):
            sparse = tf.SparseTensor([[0, 0], [1, 1]], tf.cast([0.25, 0.5], given), [3, 2])
            with policy_region(policy):
                assert MODES[mode](call)(sparse).dtype == expected, (op, given)


def test_a_sum_over_a_sparse_tensor_does_not_stop_at_256():
    ones = tf.sparse.from_dense(tf.ones([1, 3000], tf.bfloat16))
    with policy_region(Policy(dtype="bfloat16")):
        assert float(tf.sparse.reduce_sum(ones)) == 3000.0
        found = tf.sparse.segment_sum(
            tf.ones([3000, 2], tf.bfloat16), tf.range(3000), tf.zeros([3000], tf.int32)
        )
        assert float(found[0, 0]) == 3000.0


def test_a_stateless_draw_from_low_logits_is_that_from_their_float32_values(low):
    logits = tf.cast(tf.random.normal([1, 50]), low)
    expected = tf.random.stateless_categorical(tf.cast(logits, tf.float32), 200, seed=[1, 2])
    with policy_region(Policy(dtype=low.name)):
        found = tf.random.stateless_categorical(logits, 200, seed=[1, 2])
    assert found.numpy().tolist() == expected.numpy().tolist()


def test_resize_with_pad_is_a_resize(low):
    images = tf.random.uniform([1, 4, 4, 3])
    with policy_region(Policy(dtype=low.name, allow=["interpolate"])):
        assert tf.image.resize_with_pad(images, 6, 8).dtype == low
    with policy_region(Policy("O3", low.name, deny=["interpolate"])):
        assert tf.image.resize_with_pad(images, 6, 8).dtype == tf.float32


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_long_rows_of_a_ragged_tensor_are_added_up_as_dense_ones_are(compiled, low):
    row = tf.repeat([1.0, 3.0], 15_000)
    ragged = tf.RaggedTensor.from_row_lengths(row, [30_000])

    def totals():
        return (
            tf.reduce_sum(ragged, 1), tf.reduce_mean(ragged, 1), tf.math.reduce_variance(ragged, 1),
            tf.math.reduce_std(ragged, 1), tf.math.unsorted_segment_sum(row, [0] * 30_000, 1),
        )  # fmt: skip

    for level in ("O1", "O2", "O3"):
        with policy_region(Policy(level, low.name)):
            found = [
                tf.cast(each, tf.float32)[0]
                for each in (tf.function(totals) if compiled else totals)()
            ]
        # float32 holds all partial sums, so that only the result is rounded
        unit = 2.0 ** (-8 if low is tf.bfloat16 else -11)
        np.testing.assert_allclose(found, [60_000.0, 2.0, 1.0, 1.0, 60_000.0], rtol=unit)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_low_sparse_tensors_are_added_above_their_threshold(compiled, level, low):
    dense = tf.constant([[0.0, 1.5], [-2.0, 300.0]])
    sparse = tf.sparse.from_dense(dense)

    def added():
        narrow = tf.cast(sparse, low)
        return [
            tf.sparse.to_dense(tf.sparse.add(one, other, threshold=3.5))
            for one in (sparse, narrow)
            for other in (sparse, narrow)
        ]

    with policy_region(Policy(level, low.name)):
        found = (tf.function(added) if compiled else added)()
    assert found[3].dtype == low
    for each in found:
        np.testing.assert_array_equal(tf.cast(each, tf.float32), [[0.0, 0.0], [-4.0, 600.0]])


def test_the_eigenvalues_of_a_tridiagonal_matrix_of_two_dtypes(low):
    diagonal, beside = tf.constant([2.0, 3.0, 4.0]), tf.constant([1.0, 0.5])
    expected = tf.linalg.eigh_tridiagonal(diagonal, beside)
    with policy_region(Policy("O1", low.name)):
        found = tf.linalg.eigh_tridiagonal(diagonal, tf.cast(beside, low))
    np.testing.assert_array_equal(found, expected)
