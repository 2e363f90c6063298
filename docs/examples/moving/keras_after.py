"""After: the same training in Keras on TensorFlow, from the same weights, under PyTorch's lists.

python keras_after.py FOLDER

Reads torch_start.npz, and writes keras_after.npz, in PyTorch's layouts, so that the two can be held
against each other.
"""

import keras
import numpy as np
import tensorflow as tf
from images import MAX_NORM, MOMENTUM, RATE, arguments, batches

import unamp


def network() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),  # row, column, channel
            keras.layers.Conv2D(8, 3, padding="same", use_bias=False),
            # Keras' own are 0.99 and 1e-3
            keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
            keras.layers.Activation("silu"),
            keras.layers.AveragePooling2D(4),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )


def load(model: keras.Sequential, weights: dict[str, np.ndarray]) -> None:
    conv, norm, *_, dense = model.layers
    # out, in, row, column: row, column, in, out
    conv.set_weights([weights["0.weight"].transpose(2, 3, 1, 0)])
    norm.set_weights(
        [weights[f"1.{name}"] for name in ("weight", "bias", "running_mean", "running_var")]
    )
    # (out, in) is (in, out) here; and `in` was channel, row, column when torch flattened it, and is
    # row, column, channel now.
    kernel = weights["5.weight"].reshape(4, 8, 2, 2).transpose(2, 3, 1, 0).reshape(32, 4)
    dense.set_weights([kernel, weights["5.bias"]])


def weights(model: keras.Sequential) -> dict[str, np.ndarray]:
    conv, norm, *_, dense = model.layers
    kernel, bias = dense.get_weights()
    names = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    return {
        "0.weight": conv.get_weights()[0].transpose(3, 2, 0, 1),
        **dict(zip(names, norm.get_weights(), strict=True)),
        "5.weight": kernel.reshape(2, 2, 8, 4).transpose(3, 2, 0, 1).reshape(4, 32),
        "5.bias": bias,
    }


def train(model: keras.Sequential, mixed: bool) -> None:
    variables = model.trainable_variables
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(variables)
    scaler = unamp.GradScaler(2.0**12, enabled=mixed)
    for step in batches():
        # gradients are values: we add them up
        total = [tf.zeros_like(variable) for variable in variables]
        for x, labels in step:
            with tf.GradientTape() as tape:
                with unamp.autocast("cpu", "float16", enabled=mixed, preset="torch-cpu"):
                    logits = model(x.transpose(0, 2, 3, 1), training=True)
                    loss = tf.reduce_mean(
                        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                    )
                scaled = scaler.scale(loss / len(step))
            total = [
                old + new for old, new in zip(total, tape.gradient(scaled, variables), strict=True)
            ]
        unscaled = scaler.unscale_(optimizer, total)
        clipped, _ = tf.clip_by_global_norm(unscaled, MAX_NORM)
        scaler.step(optimizer, gradients=clipped)
        scaler.update()
        print(f"loss {loss.numpy():.4f}")


if __name__ == "__main__":
    given = arguments()
    model = network()
    load(model, dict(np.load(given.folder / "torch_start.npz")))
    train(model, mixed=given.dtype == "float16")
    np.savez(given.folder / "keras_after.npz", **weights(model))
