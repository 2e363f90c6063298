"""The twins in Keras, on TensorFlow: images have their channels last there."""

import keras
from keras import layers, ops


class Encoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.before = layers.LayerNormalization(epsilon=1e-5, name="attention_layer_norm")
        names = ("query", "key", "value", "attention_output")
        self.query, self.key, self.value, self.merge = (
            layers.Dense(32, name=name) for name in names
        )
        self.after = layers.LayerNormalization(epsilon=1e-5, name="feedforward_layer_norm")
        self.intermediate, self.result = (
            layers.Dense(64, name="intermediate_dense"),
            layers.Dense(32, name="output_dense"),
        )

    def call(self, x):
        h = self.before(x)
        q, k, v = (
            ops.transpose(ops.reshape(p(h), (2, 6, 4, 8)), (0, 2, 1, 3))
            for p in (self.query, self.key, self.value)
        )
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * 8**-0.5
        mixed = ops.matmul(ops.softmax(scores, axis=-1), v)
        x = x + self.merge(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (2, 6, 32)))
        return x + self.result(ops.gelu(self.intermediate(self.after(x)), approximate=False))


def lenet():
    return keras.Sequential(
        [
            layers.Conv2D(6, 5, padding="same", name="conv2d"),
            layers.Activation("tanh", name="act"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Conv2D(16, 5, name="conv2d_1"), layers.Activation("tanh", name="act_1"),
            layers.MaxPooling2D(2, name="pool_1"),
            layers.Permute((3, 1, 2), name="permute"), layers.Flatten(name="flatten"),
            layers.Dense(120, name="dense"), layers.Activation("tanh", name="act_2"),
            layers.Dense(84, name="dense_1"), layers.Activation("tanh", name="act_3"),
            layers.Dense(10, name="dense_2"),
        ]
    )  # fmt: skip


def build(name, weights):
    if name == "transformer":
        n = Encoder()
        n(ops.zeros((2, 6, 32)))
        named = {
            "n1": "m1",
            "wq": "bq",
            "wk": "bk",
            "wv": "bv",
            "wo": "bo",
            "n2": "m2",
            "w1": "b1",
            "w2": "b2",
        }
        order = [n.before, n.query, n.key, n.value, n.merge, n.after, n.intermediate, n.result]
    else:
        n = lenet()
        n(ops.zeros((2, 28, 28, 1)))
        named = {"c1": "cb1", "c2": "cb2", "w1": "b1", "w2": "b2", "w3": "b3"}
        order = [layer for layer in n.layers if layer.weights]
    for layer, (weight, bias) in zip(order, named.items(), strict=True):
        array = weights[weight]
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        layer.set_weights([array, weights[bias]])
    return lambda x: ops.convert_to_numpy(
        n(ops.convert_to_tensor(x if x.ndim == 3 else x.transpose(0, 2, 3, 1)))
    )
