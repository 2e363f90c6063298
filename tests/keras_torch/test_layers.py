"""A layer of Keras on PyTorch is one operation.

As on TensorFlow, its product and its bias follow one decision.
"""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import torch
from elsewhere import python
from keras_mixed import (  # noqa: F401
    test_a_mixed_model_trains_in_a_region,
    test_metrics_that_are_updated_by_hand_count_in_float32,
    test_regions_decide_over_keras_dtype_policies,
)

import unamp
from unamp.tracing.work import work_of

layers = keras.layers
COMPILERS: list[object] = []
BF16 = {"device_type": "cpu", "dtype": "bfloat16"}


def numbers(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape, dtype="float32"))


CASES = {
    "linear": (lambda: layers.Dense(4, bias_initializer="ones"), (3, 8)),
    "conv1d": (lambda: layers.Conv1D(4, 3), (2, 8, 3)),
    "conv2d": (lambda: layers.Conv2D(4, 3, bias_initializer="ones"), (2, 8, 8, 3)),
    "conv3d": (lambda: layers.Conv3D(4, 3), (1, 6, 6, 6, 2)),
    "conv_transpose2d": (lambda: layers.Conv2DTranspose(4, 3), (2, 8, 8, 3)),
    "depthwise_conv2d": (lambda: layers.DepthwiseConv2D(3), (2, 8, 8, 3)),
    "separable_conv2d": (lambda: layers.SeparableConv2D(4, 3), (2, 8, 8, 3)),
    "einsum": (
        lambda: layers.EinsumDense("abc,cd->abd", output_shape=(None, 5), bias_axes="d"),
        (2, 6, 8),
    ),
    "lstm": (lambda: layers.LSTM(4), (2, 5, 3)),
    "gru": (lambda: layers.GRU(4), (2, 5, 3)),
    "rnn": (lambda: layers.SimpleRNN(4), (2, 5, 3)),
}


@pytest.fixture(params=CASES)
def case(request):
    make, shape = CASES[request.param]
    layer, x = make(), numbers(*shape)
    layer(x)
    return request.param, layer, x


def test_the_backend() -> None:
    assert keras.backend.backend() == "torch"


def test_is_low_with_its_bias(case) -> None:
    op, layer, x = case
    with unamp.trace() as trace, unamp.autocast(**BF16):
        traced = layer(x)
    assert [(each.op, each.rule.name, each.compute, each.output) for each in trace.records] == [
        (op, "LOW", "bfloat16", "bfloat16")
    ]
    with unamp.autocast(**BF16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, traced)
    want = layer(x)
    assert want.dtype == torch.float32
    assert 0 < float((got - want).detach().abs().max()) < 0.1


def test_denied_it_is_float32_throughout(case) -> None:
    op, layer, x = case
    low = x.bfloat16()
    with unamp.autocast(**BF16, deny=[op]):
        got = layer(low)
    assert got.dtype == torch.float32
    assert torch.equal(got, layer(low.float()))


@pytest.mark.parametrize("part", ["add", "matmul"])
def test_rules_for_parts_do_not_reach_in(part: str) -> None:
    dense, x = layers.Dense(4, bias_initializer="ones"), numbers(3, 8)
    dense(x)
    with unamp.autocast(**BF16):
        want = dense(x)
    with unamp.autocast(**BF16, deny=[part]):
        got = dense(x)
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)


def test_pytorchs_own_lists_mean_what_they_mean_to_pytorch() -> None:
    dense, x = layers.Dense(4, bias_initializer="ones"), numbers(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        want = dense(x)
    with unamp.autocast(**BF16, preset="torch-cpu"):
        got = dense(x)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_a_subclass_with_a_call_of_its_own() -> None:
    class Twice(layers.Dense):
        def call(self, inputs):
            return super().call(inputs) * 2

    layer, x = Twice(4), numbers(3, 8)
    layer(x)
    with unamp.autocast(**BF16):
        assert layer(x).dtype == torch.bfloat16


def test_the_activation_is_an_operation_of_its_own() -> None:
    dense, x = layers.Dense(4, activation=lambda x: torch.softmax(x, -1)), numbers(3, 8)
    dense(x)
    with unamp.autocast(**BF16):
        assert dense(x).dtype == torch.float32


def test_low_results_go_on_low() -> None:
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    x = numbers(2, 8, 8, 3)
    model(x)
    with unamp.trace() as trace, unamp.autocast(**BF16):
        model(x)
    assert [(each.op, each.layer) for each in trace.records] == [
        (op, f"Sequential.{layer.name}")
        for op, layer in zip(
            ("conv2d", "relu", "max_pool2d", "linear"),
            (*model.layers[:3], model.layers[4]),
            strict=True,
        )
    ]
    assert {each.compute for each in trace.records} == {"bfloat16"}


def test_gradients_of_parameters_are_float32(case) -> None:
    _, layer, x = case
    with unamp.autocast(**BF16):
        loss = layer(x).float().square().sum()
    loss.backward()
    assert {variable.value.grad.dtype for variable in layer.trainable_variables} == {torch.float32}
    assert all(bool(variable.value.grad.abs().sum() > 0) for variable in layer.trainable_variables)


def test_a_ban_raises() -> None:
    dense, x = layers.Dense(4), numbers(3, 8)
    dense(x)
    with (
        unamp.autocast(**BF16, preset="torch-cuda"),
        pytest.raises(unamp.BannedOperation, match="binary_cross_entropy"),
    ):
        torch.nn.functional.binary_cross_entropy(torch.sigmoid(dense(x)), torch.ones(3, 4))


def test_compiled_it_is_the_same() -> None:
    model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
    x = numbers(4, 8)
    model(x)
    compiled = torch.compile(lambda x: model(x), backend="eager")
    with unamp.autocast(**BF16):
        got, want = compiled(x), model(x)
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)
    assert compiled(x).dtype == torch.float32


def test_other_threads_are_not_affected_and_nothing_stays() -> None:
    dense, x = layers.Dense(4), numbers(3, 8)
    dense(x)
    plain = layers.Dense.call, keras.DTypePolicy.convert_input, keras.optimizers.Adam.apply
    found = []
    with unamp.autocast(**BF16):
        assert layers.Dense.call is not plain[0]
        worker = threading.Thread(target=lambda: found.append(dense(x).dtype))
        worker.start()
        worker.join()
    assert found == [torch.float32]
    assert (
        layers.Dense.call,
        keras.DTypePolicy.convert_input,
        keras.optimizers.Adam.apply,
    ) == plain


def test_keras_imported_inside_a_region(tmp_path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import torch, unamp\n"
        "with unamp.autocast('cpu', dtype='bfloat16'):\n"
        "    torch.ones(2, 2) @ torch.ones(2, 2)\n"
        "with unamp.autocast('cpu', dtype='bfloat16'):\n"
        "    import keras\n"
        "    dense = keras.layers.Dense(2)\n"
        "    inside = dense(torch.ones(1, 2)).dtype\n"
        "with unamp.autocast('cpu', dtype='bfloat16'):\n"
        "    print(inside, dense(torch.ones(1, 2)).dtype)\n"
        "print(dense(torch.ones(1, 2)).dtype, 'tensorflow' in __import__('sys').modules)\n"
    )
    assert python(script) == "torch.bfloat16 torch.bfloat16\ntorch.float32 False\n"


@pytest.mark.parametrize("in_force", [True, False])
def test_looking_at_a_result_is_not_reported(in_force: bool) -> None:
    model = keras.Sequential([layers.Dense(4), layers.LayerNormalization()])
    x = numbers(3, 8)
    model(x)
    with unamp.autocast(**BF16, enabled=in_force), unamp.trace(values=True) as trace:
        model(x)
    assert [(each.op, each.layer) for each in trace.records] == [
        ("linear", f"Sequential.{model.layers[0].name}"),
        ("layer_norm", f"Sequential.{model.layers[1].name}"),
    ]
    assert all(each.values is not None and each.values.shape == (3, 4) for each in trace.records)
    assert [each.compute for each in trace.records] == (
        ["bfloat16", "float32"] if in_force else ["float32", "float32"]
    )


def test_work_is_counted() -> None:
    """The channels of the result come last in Keras' weights, on every backend."""
    image, sequence = numbers(1, 4, 4, 2), numbers(2, 5, 8)
    for layer, x, products in (
        (layers.Dense(4), numbers(3, 8), 3 * 8 * 4),
        (layers.Conv2D(5, (3, 2), padding="same"), image, 16 * 5 * 3 * 2 * 2),
        (layers.DepthwiseConv2D(3, padding="same"), image, 16 * 2 * 9),
        (layers.Conv2DTranspose(5, 3, padding="same"), image, 16 * 2 * 5 * 9),
        (layers.EinsumDense("abc,cd->abd", (None, 4)), sequence, 2 * 5 * 8 * 4),
        (layers.LSTM(4), sequence, 2 * 5 * (8 * 16 + 4 * 16)),
    ):
        layer(x)
        for in_force in (True, False):
            with unamp.autocast(**BF16, enabled=in_force), unamp.trace() as trace:
                result = layer(x)
            (record,) = trace.records
            assert work_of(record) is not None, layer
            assert work_of(record).products == products, layer
            assert record.output_shape == tuple(result.shape)
    with unamp.trace() as trace:
        keras.ops.dot_product_attention(*[numbers(2, 5, 3, 8)] * 3)  # three heads
    assert work_of(trace.records[-1]).products == 2 * (2 * 3 * 5 * 5 * 8)


def test_gradients_of_a_layer_are_told() -> None:
    layer, x = CASES["linear"][0](), numbers(3, 8)
    layer(x)
    with unamp.trace(gradients=True) as trace, unamp.autocast(**BF16):
        (2.0 * layer(x).float().sum()).backward()
    (found,) = (
        each
        for each in trace.gradients
        if each.record is not None and trace.records[each.record].op == "linear"
    )
    assert (found.dtype, found.left_out) == ("bfloat16", "")
    assert found.values is not None
    assert (found.values.shape, set(found.values.sample)) == ((3, 4), {2.0})


class Block(layers.Layer):
    """A layer that makes its inner layers when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = layers.Dense(3), layers.BatchNormalization()

    def call(self, x):
        return self.norm(self.inner(x))


class Net(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = layers.Dense(4), Block(), layers.Dense(2)

    def call(self, x):
        return self.last(self.block(self.first(x)))


def functional():
    given = keras.Input((4,))
    return keras.Model(given, layers.Dense(2)(Block()(layers.Dense(4)(given))))


LAZY = {
    "Sequential": lambda: keras.Sequential([layers.Dense(4), Block(), layers.Dense(2)]),
    "Net": Net,
    "Functional": functional,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LAZY)
def test_a_trace_in_which_a_network_is_built_is_like_later_ones(name) -> None:
    """Shapes that Keras tries out, and initial values, are no operations of the network.

    They do not change the names of its parameters either.
    """
    told, network = [], None
    for _ in range(2):
        with unamp.trace(gradients=True) as trace, unamp.autocast(**BF16):
            network = network or LAZY[name]()
            network(numbers(5, 4)).sum().backward()
        told.append(
            (
                [(each.op, each.layer) for each in trace.records],
                [each.parameter for each in trace.gradients],
            )
        )
    first, later = told
    assert first == later
    assert [op for op, _ in first[0]] == ["linear", "linear", "batch_norm", "linear", "sum"]
    assert len({each for each in first[1] if each.startswith(f"{name}.")}) == 8


@pytest.mark.parametrize("policy", [{"level": "O3"}, {"allow": ["mul", "add"]}], ids=str)
def test_no_rule_reaches_initial_values(policy) -> None:
    networks = []
    for region in ({"enabled": False}, policy):
        keras.utils.set_random_seed(0)
        networks.append(LAZY["Sequential"]())
        with unamp.autocast(**BF16, **region):
            networks[-1](numbers(5, 4))
    for one, other in zip(*(each.trainable_variables for each in networks), strict=True):
        assert torch.equal(one.value, other.value), one.path


def test_shapes_that_keras_is_asked_for_are_no_operations() -> None:
    network = functional()
    with unamp.trace() as trace:
        assert network.compute_output_shape((5, 4)) == (5, 2)
    assert not trace.records
