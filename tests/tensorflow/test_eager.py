"""Operations of eager mode follow the region's policy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from eager import *  # noqa: F403
from tensorflow.python.framework import kernels
from unamp_tensorflow.listing import kernel_class, op_types
from unamp_tensorflow.state import NAMES

import unamp
from unamp import Policy, Rule, policy_region


def under(level="O1", low=tf.bfloat16, **rest):
    return policy_region(Policy(level, low.name, **rest))


def same(a, b):
    assert a.dtype == b.dtype
    tf.debugging.assert_equal(tf.cast(a, tf.float32), tf.cast(b, tf.float32))


def test_products_and_convolutions_compute_with_rounded_inputs(low, matrix):
    image, kernel = tf.random.normal([1, 6, 6, 3]), tf.Variable(tf.random.normal([3, 3, 3, 2]))
    rounded = tf.cast(matrix, low)
    with under(low=low):
        same(matrix @ matrix, tf.matmul(rounded, rounded))
        same(tf.linalg.matmul(matrix, tf.Variable(matrix)), tf.matmul(rounded, rounded))
        same(tf.raw_ops.MatMul(a=matrix, b=matrix), tf.matmul(rounded, rounded))
        same(tf.einsum("ij,jk->ik", matrix, matrix), tf.einsum("ij,jk->ik", rounded, rounded))
        found = tf.nn.conv2d(image, kernel, 1, "SAME")
    same(found, tf.nn.conv2d(tf.cast(image, low), tf.cast(kernel, low), 1, "SAME"))


def test_what_is_given_to_raw_operations_in_python(low):
    rows = [[1.0, 2.0], [3.0, 4.001]]
    rounded = tf.cast(tf.constant(rows), low)
    with under(low=low):
        same(tf.raw_ops.MatMul(a=rows, b=rows), tf.matmul(rounded, rounded))
        same(
            tf.raw_ops.MatMul(a=np.float32(rows), b=tf.constant(rows)), tf.matmul(rounded, rounded)
        )
        assert tf.raw_ops.MatMul(a=[[1, 2]], b=[[1], [2]]).dtype == tf.int32
    with under(low=low, allow="tile"):
        same(tf.tile(tf.constant(rows), [2, 1]), tf.tile(rounded, [2, 1]))


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_lists_are_taken_where_the_registry_has_another_name_for_them(level):
    numbers = [1.0, 2.0]
    with unamp.autocast(level=level, dtype="bfloat16"):
        found = [
            tf.reduce_prod(numbers, [0]),
            tf.raw_ops.Sum(input=numbers, axis=[0]),
            tf.raw_ops.Select(condition=[True, False], x=numbers, y=numbers)[1],
            tf.raw_ops.Squeeze(input=[numbers], axis=[0])[1],
            tf.raw_ops.SplitV(value=numbers, size_splits=[1, 1], axis=0, num_split=2)[1][0],
        ]
    assert [float(each) for each in found] == [2.0, 3.0, 2.0, 2.0, 2.0]


def test_complex_numbers_are_left_alone(low):
    with under("O3", low):
        assert tf.exp(tf.ones([2], tf.complex64)).dtype == tf.complex64


def test_lists_of_a_user(low, matrix):
    with under(low=low, allow="tf.add", deny=["MatMul", tf.nn.conv2d]):
        assert (matrix + matrix).dtype == low
        assert (matrix @ matrix).dtype == tf.float32
        assert (
            tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 1]), 1, "SAME").dtype
            == tf.float32
        )


def test_denying_matmul_reaches_the_batched_operation_type(matrix):
    with under(deny="matmul"):
        assert tf.matmul(matrix[None], matrix[None]).dtype == tf.float32
    with under(deny="bmm"):
        assert tf.matmul(matrix[None], matrix[None]).dtype == tf.bfloat16


def test_functions_of_python_are_one_operation(low, matrix):
    x = tf.cast(matrix, low)
    with under(low=low):
        assert tf.nn.gelu(x).dtype == low
        assert tf.reduce_logsumexp(x).dtype == tf.float32
        assert tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=x).dtype == tf.float32
        assert tf.nn.softmax_cross_entropy_with_logits(labels=x, logits=x).dtype == tf.float32
    with under(low=low, allow="gelu", deny="exp"):
        same(tf.nn.gelu(matrix), tf.nn.gelu(x))


def test_a_norm_casts_its_activation_alone(low):
    x = tf.random.normal([2, 4, 4, 3])
    scale, offset = tf.random.normal([3]), tf.random.normal([3])
    with under("O3", low):
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=tf.zeros([0]), variance=tf.zeros([0])
        )
    assert (y.dtype, mean.dtype, variance.dtype) == (low, tf.float32, tf.float32)


def test_emulated_operations(low):
    spd = tf.constant([[4.0, 1.01], [1.01, 3.0]])
    rounded = tf.cast(tf.cast(spd, low), tf.float32)
    with under(low=low, allow="linalg_cholesky"):
        same(tf.linalg.cholesky(spd), tf.cast(tf.linalg.cholesky(rounded), low))
    with under(low=low, preset="none"):
        # the rule leaves a low tensor alone, although the dtype has no kernel
        assert tf.linalg.cholesky(tf.cast(spd, low)).dtype == low


# --- inputs that differ ---------------------------------------------------------------------------


def test_everything_that_can_differ_comes_from_the_registry():
    several = [each for each in op_types().values() if each.several]
    assert len(several) > 150
    assert set("AddV2 ConcatV2 SelectV2 ResourceApplyAdam TensorScatterUpdate Betainc".split()) <= {
        e.name for e in several
    }


def test_the_kernel_that_tensorflow_finds_is_among_those_that_it_lists():
    """TensorFlow's fast search and its list of kernels give the same answer."""
    found = op_types()
    for name in (
        "MatMul Conv2D AddV2 Reshape Sum FusedBatchNormV3 Cholesky LRN Relu MaxPool FFT"
    ).split():
        listed = [
            each
            for each in kernels.get_registered_kernels_for_op(name).kernel
            if each.device_type == "CPU"
        ]
        for dtype in NAMES if name in found else ():
            constraints = [
                [c for c in kernel.constraint if c.name == found[name].attr] for kernel in listed
            ]
            takes = any(
                all(dtype in c.allowed_values.list.type for c in each) for each in constraints
            )
            assert bool(kernel_class(found[name], dtype, "CPU")) is takes, (name, dtype)


MIXED = {
    "+": lambda a, b: a + b,
    "r-": lambda a, b: b - a,
    "concat": lambda a, b: tf.concat([a, b], 0),
    "stack": lambda a, b: tf.stack([a, b]),
    "where": lambda a, b: tf.where(a > 0, a, b),
    "add_n": lambda a, b: tf.add_n([a, b]),
    "squared_difference": tf.math.squared_difference,
    "tensor_scatter": lambda a, b: tf.tensor_scatter_nd_update(b, [[0]], a[:1]),
    "betainc": lambda a, b: tf.math.betainc(tf.abs(a) + 1, tf.abs(b) + 1, tf.sigmoid(b)),
    "clip": lambda a, b: tf.clip_by_value(a, -1.0, b),
    "solve": lambda a, b: tf.linalg.solve(a, b),
    "pad": lambda a, b: tf.pad(a, [[1, 1], [0, 0]], constant_values=b[0, 0]),
    "less": lambda a, b: a < b,
    "dynamic_stitch": lambda a, b: tf.dynamic_stitch([[0, 1, 2, 3], [4, 5, 6, 7]], [a, b]),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_differing_inputs_never_raise(low, matrix, name, graph):
    call = tf.function(MIXED[name]) if graph else MIXED[name]
    x = tf.cast(matrix, low)
    for level in ("O1", "O2", "OD"):
        with under(level, low):
            found = call(x, matrix)
        if level == "O1" and found.dtype != tf.bool:
            assert found.dtype == tf.float32


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_lists_of_tensors_have_the_dtype_that_is_asked_for(low, matrix, level, graph):
    variable = tf.Variable(tf.zeros([2, 4]))

    def run(x):
        product = tf.matmul(x, x)
        asked = tf.convert_to_tensor([x[0], product[0]], tf.float32)
        variable.scatter_nd_update([[0], [1]], [x[0], x[1]])
        array = tf.TensorArray(tf.float32, 2).write(0, x).write(1, product)
        return (
            asked,
            tf.convert_to_tensor([product[0], product[1]], low),
            array.stack(),
            tf.reduce_sum([[product], [x]]),
        )

    with under(level, low):
        asked, rounded, stacked, _ = (tf.function(run) if graph else run)(matrix)
    assert (asked.dtype, rounded.dtype, stacked.dtype) == (tf.float32, low, tf.float32)
    same(asked[0], matrix[0])
    same(variable, matrix[:2])


def test_variables_take_low_values(low, matrix):
    variable = tf.Variable(tf.zeros([4, 4]))
    with under(low=low):
        variable.assign(matrix @ matrix)
        variable.assign_add(tf.cast(matrix, low))
        variable.assign_sub(tf.cast(matrix, low))
    assert variable.dtype == tf.float32
    same(
        variable.value(),
        tf.cast(tf.matmul(tf.cast(matrix, low), tf.cast(matrix, low)), tf.float32) + 0.0,
    )


def test_a_part_of_a_variable_takes_low_values(low, matrix):
    variable = tf.Variable(tf.zeros([4, 4]))
    with under(low=low):
        variable[1:].assign((matrix @ matrix)[1:])
    same(
        variable[1:], tf.cast(tf.matmul(tf.cast(matrix, low), tf.cast(matrix, low)), tf.float32)[1:]
    )


def test_linear_operators_take_low_values(low, matrix):
    operator = tf.linalg.LinearOperatorFullMatrix(matrix)
    with under(low=low):
        once = operator.matmul(matrix)
        twice, back, added = (
            operator.matmul(once),
            operator.solve(once),
            operator.add_to_tensor(once),
        )
    same(once, tf.matmul(tf.cast(matrix, low), tf.cast(matrix, low)))
    same(twice, tf.matmul(tf.cast(matrix, low), once))
    assert back.dtype == tf.float32
    same(added, matrix + tf.cast(once, tf.float32))


def test_linear_operators_with_methods_of_their_own_take_low_values(low, matrix):
    full = tf.linalg.LinearOperatorFullMatrix(matrix)
    blocks = tf.linalg.LinearOperatorBlockDiag([full, full])
    triangle = tf.linalg.LinearOperatorBlockLowerTriangular([[full], [full, full]])
    identity = tf.linalg.LinearOperatorIdentity(4)

    def calls(both):
        for blockwise in (both, tf.concat(both, -2)):
            vectors = tf.nest.map_structure(lambda x: x[..., 0], blockwise)
            for each in (blocks, triangle):
                yield from ((each.matmul, blockwise), (each.solve, blockwise))
                yield from ((each.matvec, vectors), (each.solvevec, vectors))

    with under("O2", low=low):
        once = matrix + 0.0
        both = [once, once]
        assert once.dtype == low
        found = [method(given) for method, given in calls(both)]
        added = identity.add_to_tensor(once), identity.add_to_tensor(mat=once)
        product = blocks.matmul(both)[0]
    for each in added:
        same(tf.cast(each, tf.float32), tf.eye(4) + tf.cast(once, tf.float32))
    same(product, tf.matmul(tf.cast(matrix, low), once))
    expected = [method(given) for method, given in calls([matrix, matrix])]
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert one.shape == other.shape


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_linear_operators_are_made_of_low_values(low, matrix, level):
    part, variable = matrix[:, :1], tf.Variable(matrix)
    operators = tf.linalg
    with under(level, low=low):
        product = tf.matmul(matrix, matrix)
        made = operators.LinearOperatorFullMatrix(product)
        blocks = operators.LinearOperatorBlockDiag(
            [made, operators.LinearOperatorFullMatrix(matrix)]
        )
        updated = operators.LinearOperatorLowRankUpdate(
            operators.LinearOperatorFullMatrix(matrix), tf.matmul(matrix, part)
        )
        composed = operators.LinearOperatorDiag(tf.matmul(matrix, part)[:, 0]) @ made
        assert operators.LinearOperatorFullMatrix(variable).parameters["matrix"] is variable
        times = made.matmul(matrix)
    assert product.dtype == times.dtype == low
    wide = tf.cast(product, tf.float32)
    same(made.to_dense(), wide)
    same(blocks.to_dense()[:4, :4], wide)
    same(blocks.to_dense()[4:, 4:], matrix)
    column = tf.cast(tf.matmul(tf.cast(matrix, low), tf.cast(part, low)), tf.float32)
    same(composed.to_dense(), column * wide)
    same(updated.to_dense(), matrix + tf.matmul(column, column, transpose_b=True))
    same(times, tf.matmul(product, tf.cast(matrix, low)))


def test_assert_near_compares_low_tensors_with_float32(low, matrix):
    exact = tf.matmul(matrix, matrix)
    with under(low=low):
        product = tf.matmul(matrix, matrix)
        for first, second in ((product, exact), (exact, product), (product, exact.numpy())):
            tf.debugging.assert_near(first, second, rtol=0.1, atol=0.1)
            with pytest.raises(tf.errors.InvalidArgumentError, match="not equal to tolerance"):
                tf.debugging.assert_near(first, second + 1.0, rtol=0.1, atol=0.1)

        @tf.function
        def check(x):
            tf.debugging.assert_near(x @ x, exact, 0.1, 0.1)

        check(matrix)


def test_moving_averages_are_float32_at_every_level():
    averages = tf.train.ExponentialMovingAverage(0.999)
    variable = tf.Variable(1.0)
    averages.apply([variable])
    variable.assign(2.0)
    with under("O3"):
        averages.apply([variable])
    assert abs(float(averages.average(variable)) - 1.001) < 1e-6  # bfloat16 has no number there


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("graph", [False, True])
def test_what_makes_numbers_takes_low_parameters(low, matrix, level, graph):
    def run(x):
        mean = tf.matmul(x, x)[0]
        drawn = (
            tf.random.normal([4], mean),
            tf.random.stateless_normal([4], [1, 2], mean),
            tf.random.uniform([4], 0.0, mean[0]),
        )
        return (
            *drawn,
            tf.linspace(x[0, 0], mean[0], 3),
            tf.linspace(mean[0], x[0, 0], 3),
            tf.zeros_like(mean),
        )

    with under(level, low):
        *made, alike = (tf.function(run) if graph else run)(matrix)
    assert [each.dtype for each in made] == [tf.float32] * 5
    assert alike.dtype == low


@pytest.mark.parametrize("graph", [False, True])
def test_a_mean_of_many_numbers_is_no_larger_than_they_are(graph):
    mean = tf.function(tf.reduce_mean) if graph else tf.reduce_mean
    values = tf.Variable(tf.ones([70_000], tf.float16))
    with tf.GradientTape() as tape, under("O1", tf.float16):
        found = [mean(values), mean(values[:, None], 0), tf.keras.ops.mean(values)]
    for each in found:
        same(each, tf.ones(each.shape, tf.float16))
    same(tape.gradient(found[0], values)[0], tf.cast(1 / 70_000, tf.float16))


def test_random_numbers_and_initial_values_keep_their_meaning():
    for level in ("O2", "O3"):
        with under(level):
            numbers = tf.random.normal([64])
            assert numbers.dtype == tf.float32
            assert tf.random.stateless_uniform([2], [1, 2]).dtype == tf.float32
            assert tf.keras.initializers.GlorotUniform(1)([8, 8]).dtype == tf.float32
        assert np.any(tf.cast(tf.cast(numbers, tf.bfloat16), tf.float32) != numbers)


# --- regions --------------------------------------------------------------------------------------


def test_a_region_of_another_framework_or_device_changes_nothing(matrix):
    with unamp.Region(unamp.Policy(dtype="float16"), device="gpu"):
        assert (matrix @ matrix).dtype == tf.float32
    with unamp.autocast(preset="native", dtype="bfloat16"):
        assert (matrix @ matrix).dtype == tf.float32


def test_lists_take_functions_layers_and_operation_types():
    policy = Policy(
        allow=[tf.nn.relu, tf.keras.layers.LayerNormalization],
        deny=[tf.raw_ops.MatMul, "tf.keras.layers.Dense"],
    )
    assert [policy.decide(op) for op in ("relu", "layer_norm", "matmul", "linear")] == [
        Rule.LOW
    ] * 2 + [Rule.FP32] * 2


def test_inputs_that_take_float32_alone_get_it(low):
    image, boxes = tf.ones([1, 4, 4, 1]), tf.constant([[0.0, 0.0, 1.0, 1.0]])
    for graph in (False, True):

        def crop(image, boxes):
            return tf.image.crop_and_resize(image, boxes, [0], [2, 2])

        crop = tf.function(crop) if graph else crop
        with under(low=low):
            assert crop(image, tf.cast(boxes, low)).dtype == tf.float32
            assert crop(tf.ones([1, 4, 4, 1], tf.uint8), tf.cast(boxes, low)).shape == [1, 2, 2, 1]
        with under(low=low, allow="crop_and_resize"):
            assert crop(image, boxes).dtype == low


@pytest.mark.parametrize("level", ["OD", "O2", "O3"])
def test_shapes_of_two_integer_dtypes_are_joined_as_outside(level):
    signal = tf.random.normal([4, 16])
    with unamp.autocast(level=level, dtype="bfloat16"):
        joined = tf.signal.overlap_and_add(signal, 4)  # concatenates an int32 and an int64 shape
    assert joined.shape == [28]


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_a_dtype_that_is_stated_for_numbers_is_theirs_whatever_the_rule(level):
    alpha = tf.constant([2.0, 3.0], tf.float16)  # TensorFlow draws no gamma in bfloat16
    with under(level, tf.float16):
        drawn = tf.random.gamma([3], alpha, dtype=tf.float16), tf.random.gamma([3], alpha)
        drawn += tf.random.normal([2], alpha, 1.0, dtype=tf.float16), tf.random.normal([2], alpha)
    assert [each.dtype for each in drawn] == [tf.float16, tf.float32, tf.float16, tf.float32]
    assert all(bool(tf.reduce_all(tf.math.is_finite(each))) for each in drawn)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_draw_that_is_given_no_tensor_has_nothing_that_a_list_could_cast(level, graph):
    names = "normal", "truncated_normal", "uniform"

    def draws():
        return [getattr(tf.random, name)([2]) for name in names]

    with under(level, allow=names):
        assert [each.dtype for each in (tf.function(draws) if graph else draws)()] == [
            tf.float32
        ] * 3


@pytest.mark.parametrize(
    "rest",
    [
        {"deny": ["normal", "count_nonzero", "arange"]},
        {"allow": ["normal", "arange"]},
        {"level": "O3"},
    ],
)
@pytest.mark.parametrize("low", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_a_dtype_that_a_caller_names_by_its_position_is_as_explicit_as_by_its_name(low, rest):
    mean, other = tf.constant([1.0, 2.0], low), tf.float16 if low is tf.bfloat16 else tf.bfloat16
    generator = tf.random.Generator.from_seed(1)
    with under(low=other, **rest):
        positional = [
            tf.random.normal([2], 0.0, 1.0, low), tf.range(0.0, 3.0, 1.0, low),
            tf.math.count_nonzero(mean, None, False, low), generator.normal([2], mean, 1.0, low),
        ]  # fmt: skip
        named = [
            tf.random.normal([2], mean, dtype=low), tf.random.normal([2], dtype=low),
            tf.range(0.0, 3.0, dtype=low), tf.math.count_nonzero(mean, dtype=low),
            generator.normal([2], mean, dtype=low),
        ]  # fmt: skip
    assert [each.dtype for each in positional] == [low] * 4
    assert [each.dtype for each in named] == [low] * 5


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_cast_that_saturates_takes_the_numbers_as_they_are(level, graph):
    def casts(x):
        return (
            tf.saturate_cast(x, tf.uint8),
            tf.saturate_cast(x, tf.float32),
            tf.keras.ops.saturate_cast(x, "uint8"),
        )

    x = tf.linspace(-20.0, 280.0, 301)
    expected = casts(x)
    with under(level, tf.bfloat16):
        found = (tf.function(casts) if graph else casts)(x)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("policy", [Policy("O2", "float16"), Policy("O3", "bfloat16")], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_a_list_of_tensors_that_is_cast_is_packed_by_no_rule(policy, compiled):
    def pack(x, y):
        return (
            tf.cast([x, y], tf.float32),
            tf.cast([[x], [y]], tf.float64),
            tf.cast((x, 1.5), tf.int32),
            tf.bitcast([x, y], tf.int32),
        )

    # float16 has neither number
    call, (x, y) = (
        tf.function(pack) if compiled else pack,
        (tf.constant(3001.0), tf.constant(70_001.0)),
    )
    known = call(x, y)
    with unamp.policy_region(policy):
        found = call(x, y)
        low = tf.cast([tf.cast(x, policy.dtype), y], tf.float32)
    for one, other in zip(found, known, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), strict=True)
    assert low.numpy()[1] == 70_001.0


def test_the_initial_value_of_a_variable_follows_no_rule():
    with unamp.policy_region(Policy("O2", "bfloat16")):
        made = [
            tf.Variable([tf.constant(3001.0), tf.constant(70_001.0)]),
            tf.Variable(lambda: tf.constant([3001.0, 70_001.0]) * 1.0),
            tf.Variable([tf.constant(3001.0, tf.bfloat16), tf.constant(70_001.0)]),
        ]
    assert {each.dtype for each in made} == {tf.float32}
    assert [each.numpy()[1] for each in made] == [70_001.0] * 3
    assert [each.numpy()[0] for each in made[:2]] == [3001.0] * 2


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_images_are_converted_and_weights_of_signals_made_as_outside(level, graph, low):
    image = tf.constant(np.linspace(0.0, 1.0, 300, dtype=np.float32))
    whole = tf.cast(tf.range(0, 65_536, 771), tf.uint16)

    def made():
        return (
            tf.image.convert_image_dtype(image, tf.uint16),
            tf.image.convert_image_dtype(whole, tf.float32),
            tf.signal.linear_to_mel_weight_matrix(40, 513, 16_000),
            tf.signal.vorbis_window(1000),
            tf.signal.kaiser_bessel_derived_window(1000),
        )

    expected = made()
    with under(level, low):
        found = (tf.function(made) if graph else made)()
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
