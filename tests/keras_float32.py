"""Layers of Keras that state float32, on every backend.

The region decides and warns. Only one way to state float32 overrides it.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import unamp
from unamp import amp_warnings

X = np.ones((2, 8), "float32")


class Float32Dense(keras.layers.Dense):
    """The documented way to keep a layer in float32."""

    call = unamp.autocast(dtype="float32", level="O2")(keras.layers.Dense.call)


def dtype(tensor: Any) -> str:
    return str(keras.backend.standardize_dtype(tensor.dtype))


def said(call: Any) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Call in a region; return the warnings about layers, and the row of each layer."""
    amp_warnings._given.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with unamp.autocast(dtype="bfloat16"), unamp.trace() as trace:
            call()
    rows = {
        record.layer.rpartition(".")[2]: (record.native, record.compute) for record in trace.records
    }
    return [
        str(each.message) for each in found if "was made with dtype='float32'" in str(each.message)
    ], rows


def test_stated_float32_follows_the_region_and_says_so() -> None:
    model = keras.Sequential(
        [keras.layers.Dense(8, name="body"), keras.layers.Dense(4, dtype="float32", name="head")]
    )
    model.build((None, 8))
    messages, rows = said(lambda: model(X))
    assert rows["body"][0].rpartition(".")[2] != rows["head"][0].rpartition(".")[2]
    assert rows["head"][0].endswith("(dtype=float32)")
    assert rows["head"][1] == rows["body"][1] == "bfloat16"
    assert len(messages) == 1
    assert "Dense 'head'" in messages[0]


def test_a_layer_that_states_nothing_is_not_named() -> None:
    model = keras.Sequential(
        [keras.layers.Dense(8, name="body", kernel_initializer=keras.initializers.HeNormal())]
    )
    model.build((None, 8))
    keras.config.set_dtype_policy("float32")
    messages, rows = said(lambda: model(X))
    assert messages == []
    assert "float32" not in rows["body"][0]


def test_beside_a_mixed_global_policy_float32_was_stated_by_somebody() -> None:
    """Check a layer that has an object as argument: Keras then keeps none of its arguments."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        head = keras.layers.Dense(
            4, dtype="float32", kernel_initializer=keras.initializers.HeNormal()
        )
        head.build((None, 8))
        messages, _ = said(lambda: head(X))
        assert len(messages) == 1
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_class_of_ones_own_keeps_float32(request: pytest.FixtureRequest) -> None:
    """Check it eagerly, and in functions that `COMPILERS` of the folder's backend compile."""
    model = keras.Sequential([keras.layers.Dense(8), Float32Dense(4, activation="relu")])
    model.build((None, 8))
    body, head = model.layers
    x = keras.ops.convert_to_tensor(X)
    compiled = [(compiler(lambda x: model(x)), ("O1",)) for compiler in request.module.COMPILERS]
    for call, levels in ((model, ("O1", "O2", "O3")), *compiled):
        for level in levels:
            with unamp.autocast(dtype="bfloat16", level=level):
                low, found = body(x), call(x)
            assert (dtype(low), dtype(found)) == ("bfloat16", "float32")
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(found),
                keras.ops.convert_to_numpy(head(keras.ops.cast(low, "float32"))),
                1e-5,
            )


__all__ = [name for name in globals() if name.startswith("test_")]
