"""Layers of Keras that were made with a mixed dtype policy, on every backend.

In a region they are float32 layers. Their own casts would round values that the region's policy
wants in float32, or in the other low dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
from elsewhere import python

import unamp
from unamp import Policy, policy_region

layers, metrics = keras.layers, keras.metrics
MIXED = ("mixed_float16", "mixed_bfloat16")
#: Numbers that float16 cannot hold, and that bfloat16 rounds.
LARGE = np.full((1, 4, 4), 1.001e5, "float32") * np.linspace(1, 2, 16, dtype="float32").reshape(
    1, 4, 4
)
POLICIES = (
    Policy(dtype="bfloat16"), Policy(dtype="bfloat16", deny=["linear", "conv1d"]),
    Policy("O2", "bfloat16"), Policy("OD", "float16"), Policy(deny="*"),
)  # fmt: skip


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def dtype(tensor: Any) -> str:
    return str(keras.backend.standardize_dtype(tensor.dtype))


def dtypes(tensors: list[Any]) -> set[str]:
    return {dtype(each) for each in tensors}


def made(of: str) -> list[tuple[Any, Any]]:
    """Return layers of each kind with their arguments; the same numbers for every dtype policy."""
    x, constant = keras.ops.convert_to_tensor(LARGE), keras.initializers.Constant
    low = keras.ops.cast(x, "bfloat16")
    with dtype_policy(of):
        kept = {"kernel_initializer": constant(3e-6)}
        return [
            (layers.Dense(3, **kept), x), (layers.Dense(3, activation="softmax", **kept), x),
            (layers.Conv1D(3, 1, **kept), x),
            (layers.EinsumDense("abc,cd->abd", (None, 5), **kept), x),
            (layers.LayerNormalization(), x), (layers.BatchNormalization(), x),
            (layers.RMSNormalization(), x), (layers.GroupNormalization(2), x),
            (layers.UnitNormalization(), x), (layers.ReLU(), x), (layers.Softmax(), x),
            (layers.Activation("softmax"), x), (layers.Flatten(), x), (layers.Add(), [x, low]),
            (layers.MaxPooling1D(2), x),
            (layers.Embedding(2, 3, constant(7e4)), keras.ops.convert_to_tensor([[0, 1]])),
            (layers.SimpleRNN(3, recurrent_initializer="ones", **kept), x),
            (layers.MultiHeadAttention(1, 2, **kept), [x, x]), (layers.Dense(3, **kept), low),
        ]  # fmt: skip


def test_regions_decide_over_keras_dtype_policies(request: pytest.FixtureRequest) -> None:
    """Check it eagerly, and in functions that `COMPILERS` of the folder's backend compile."""
    for compiler in (lambda call: call, *request.module.COMPILERS):
        mixed, plain = {of.removeprefix("mixed_"): made(of) for of in MIXED}, made("float32")

        def results(*given: list[tuple[Any, Any]], compiler: Any = compiler) -> list[list[Any]]:
            def call() -> list[list[Any]]:
                return [
                    [
                        layer(*x) if isinstance(layer, layers.MultiHeadAttention) else layer(x)
                        for layer, x in each
                    ]
                    for each in given
                ]

            return compiler(call)()  # type: ignore[no-any-return]

        owns = [{own} for own in mixed]
        assert [*map(dtypes, results(*mixed.values()))] == owns
        results(plain)
        for policy in POLICIES:
            with policy_region(policy):
                *founds, expected = results(*mixed.values(), plain)
            for found in founds:
                for (layer, _), one, other in zip(plain, found, expected, strict=True):
                    assert dtype(one) == dtype(other), (layer, policy)
                    one, other = (
                        keras.ops.convert_to_numpy(keras.ops.cast(each, "float32"))
                        for each in (one, other)
                    )
                    np.testing.assert_array_equal(one, other, str((layer, policy)))
        with policy_region(Policy(enabled=False)):
            assert [*map(dtypes, results(*mixed.values()))] == owns
        assert [*map(dtypes, results(*mixed.values()))] == owns


def test_a_mixed_model_trains_in_a_region() -> None:
    with dtype_policy("mixed_float16"):
        model = keras.Sequential(
            [layers.Dense(8, activation="relu"), layers.LayerNormalization(), layers.Dense(4)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)  # Keras makes it
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    with unamp.autocast(dtype="bfloat16"):
        losses = model.fit(x, x[:, :4], epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


#: The first batch weighs as many as bfloat16 can count; the others it cannot add one by one.
FIRST, OTHERS = 256, 44


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        (metrics.TruePositives, FIRST + OTHERS),
        (metrics.Sum, FIRST + OTHERS),
        (metrics.Precision, 0.5),
        (metrics.Recall, 1.0),
        (metrics.AUC, 1.0),
        (lambda: metrics.FBetaScore(average="micro", threshold=0.5), 2 / 3),
        (lambda: metrics.BinaryIoU(target_class_ids=[1]), 0.5),
    ],
    ids=["true positives", "sum", "precision", "recall", "area", "f", "overlap"],
)
def test_metrics_that_are_updated_by_hand_count_in_float32(
    metric: Any, wanted: float, level: Any
) -> None:
    kept = metric()
    labels, predictions = map(keras.ops.convert_to_tensor, ([[1.0], [0.0]], [[0.9], [0.6]]))
    given = (labels,) if metric is metrics.Sum else (labels, predictions)
    with unamp.autocast(level=level, dtype="bfloat16"):
        kept.update_state(*given, sample_weight=keras.ops.full((2,), FIRST))
        for _ in range(OTHERS):
            kept.update_state(*given)
        found = kept.result()
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    assert dtype(found) == "float32"


IMPORTED_LATE = """
import importlib, sys, unamp
importlib.import_module(sys.argv[1])
with unamp.autocast(dtype="bfloat16"):
    import keras
    dense = keras.layers.Dense(2, dtype="mixed_float16")
x = keras.ops.ones((1, 2))
with unamp.autocast(dtype="bfloat16"):
    inside = dense(x).dtype
print(*map(keras.backend.standardize_dtype, (inside, dense(x).dtype)))
"""


def test_keras_imported_inside_a_region() -> None:
    assert python("-c", IMPORTED_LATE, keras.backend.backend()) == "bfloat16 float16\n"


__all__ = [name for name in globals() if name.startswith("test_")]
