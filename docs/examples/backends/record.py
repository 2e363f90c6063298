"""Record a trace of Keras' MobileNetV2 on one of Keras' backends, with the same weights on each.

    python record.py tensorflow run-tensorflow
    python record.py jax run-jax wrong

With a third word, the batch norms of the backend take another epsilon than the network says, which
is what goes wrong in many a port.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path


def main(backend: str, folder: str, wrong: str = "", size: str = "64") -> None:
    """Run the network once; keep its trace and the arguments of every operation in the folder."""
    os.environ["KERAS_BACKEND"] = backend
    import keras

    shape = (int(size), int(size), 3)
    run(
        keras.applications.MobileNetV2(input_shape=shape, alpha=0.35, weights=None, classes=10),
        backend,
        folder,
        wrong,
    )


def run(model, backend: str, folder: str, wrong: str) -> None:
    """Run a model with weights and images that are the same on every backend."""
    import keras
    import numpy as np

    import unamp  # after the framework: it watches those that are imported

    draw = np.random.default_rng(0)
    model.set_weights([_drawn(draw, each.shape) for each in model.weights])
    x = draw.standard_normal((2, *model.input_shape[1:])).astype("float32")
    if wrong:
        plant(import_module(f"keras.src.backend.{backend}.nn"))
    with unamp.trace(values=True, keep=folder) as trace:
        model(keras.ops.convert_to_tensor(x), training=False)
    Path(folder, "trace.json").write_text(trace.to_json(), "utf-8")


def plant(nn) -> None:
    """Put a batch norm in the place of a backend's that knows one epsilon."""
    right = nn.batch_normalization

    def batch_normalization(x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3):
        return right(x, mean, variance, axis, offset, scale, 1e-5)

    nn.batch_normalization = batch_normalization


def _drawn(draw, shape):
    if len(shape) < 2:  # biases, and the numbers of norms
        return draw.uniform(0.5, 1.5, shape).astype("float32")
    return (draw.standard_normal(shape) * (2 / (shape[0] * shape[1])) ** 0.5).astype("float32")


if __name__ == "__main__":
    main(*sys.argv[1:])
