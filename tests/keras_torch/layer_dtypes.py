"""Print the dtype of each Keras layer's result under each policy, as JSON.

The environment's KERAS_BACKEND names the backend.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import unamp

layers = keras.layers

#: Each layer with the shapes of its inputs; several inputs are given as a list.
LAYERS: dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "Dense": (lambda: layers.Dense(4), ((3, 8),)),
    "Conv2D": (lambda: layers.Conv2D(4, 3, activation="softmax"), ((2, 8, 8, 3),)),
    "DepthwiseConv1D": (lambda: layers.DepthwiseConv1D(3), ((2, 8, 3),)),
    "SeparableConv2D": (lambda: layers.SeparableConv2D(4, 3), ((2, 8, 8, 3),)),
    "Conv1DTranspose": (lambda: layers.Conv1DTranspose(4, 3), ((2, 8, 3),)),
    "EinsumDense": (
        lambda: layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"),
        ((2, 6, 8),),
    ),
    "LSTM": (lambda: layers.LSTM(4), ((2, 5, 3),)),
    "Bidirectional": (lambda: layers.Bidirectional(layers.GRU(4)), ((2, 5, 3),)),
    "SpectralNormalization": (lambda: layers.SpectralNormalization(layers.Dense(4)), ((3, 8),)),
    "GroupNormalization": (lambda: layers.GroupNormalization(2), ((2, 5, 4),)),
    "PReLU": (lambda: layers.PReLU(), ((3, 8),)),
    "Softmax": (lambda: layers.Softmax(), ((3, 8),)),
    "AveragePooling2D": (lambda: layers.AveragePooling2D(2), ((2, 8, 8, 3),)),
    "GlobalAveragePooling1D": (lambda: layers.GlobalAveragePooling1D(), ((2, 8, 3),)),
    "Concatenate": (lambda: layers.Concatenate(), ((3, 4), (3, 4))),
    "Multiply": (lambda: layers.Multiply(), ((3, 4), (3, 4))),
    "Dot": (lambda: layers.Dot(1), ((3, 4), (3, 4))),
    "Attention": (lambda: layers.Attention(), ((2, 5, 8), (2, 5, 8))),
    "AdditiveAttention": (lambda: layers.AdditiveAttention(), ((2, 5, 8), (2, 5, 8))),
    **{
        name: (getattr(layers, name), ((2, 5, 4),))
        for name in (
            "BatchNormalization LayerNormalization RMSNormalization UnitNormalization Flatten"
        ).split()
    },
    **{
        f"{of.__name__} {activation}": (
            lambda of=of, activation=activation: made(of, activation),
            ((3, 8),),
        )
        for of in (layers.Dense, layers.Activation)
        for activation in (
            "softmax log_softmax mish squareplus sparsemax gelu relu softplus exponential"
        ).split()
    },
}

#: Functions of `keras.ops`.
FUNCTIONS = ("matmul", "softmax", "exp", "add", "logsumexp", "mean", "sqrt", "layer_normalization")

POLICIES = {
    "O1": {"level": "O1"},
    "O2": {"level": "O2"},
    "OD": {"level": "OD"},
    "tensorflow": {"level": "O1", "preset": "tensorflow"},
    "denied": {"level": "O1", "deny": ["linear", "matmul", "batch_norm"]},
}


def made(of: type, activation: str) -> Any:
    return of(4, activation=activation) if of is layers.Dense else of(activation)


def tensor(shape: tuple[int, ...], dtype: str) -> Any:
    return keras.ops.cast(keras.ops.convert_to_tensor(np.ones(shape, "float32")), dtype)


def calls() -> dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]:
    found: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {}
    for of in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(of)
        for name, (make, shapes) in LAYERS.items():
            layer = make()
            several = len(shapes) > 1
            found[f"{name}, {of}"] = (
                (lambda *xs, layer=layer, several=several: layer(list(xs) if several else xs[0])),
                shapes,
            )
    for name in FUNCTIONS:
        function = getattr(keras.ops, name)
        found[f"ops.{name}"] = function, ((4, 4),) * (2 if name in ("matmul", "add") else 1)
    return found


def answered() -> dict[str, str]:
    """Return the dtype of each layer's result, by layer, policy and the dtype of its inputs."""
    before, answers = keras.config.dtype_policy(), {}
    try:
        found = calls()
    finally:
        keras.config.set_dtype_policy(before)
    for name, (call, shapes) in found.items():
        call(*(tensor(shape, "float32") for shape in shapes))  # builds the layer
        for policy, keywords in POLICIES.items():
            for dtype in ("float32", "bfloat16"):
                xs = [tensor(shape, dtype) for shape in shapes]
                with unamp.autocast(dtype="bfloat16", **keywords):  # type: ignore[arg-type]
                    answers[f"{name}, {policy}, {dtype}"] = keras.backend.standardize_dtype(
                        call(*xs).dtype
                    )
    return answers


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(answered()))
