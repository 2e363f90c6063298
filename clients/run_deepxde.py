"""DeepXDE on a Poisson equation, with second derivatives, on the backend that DDE_BACKEND names.

It trains in its own loop, which turns results into NumPy arrays. NumPy has no bfloat16: the
network's outputs are cast in DeepXDE's transform of outputs. In TensorFlow, DeepXDE's derivatives
work only in graphs, so the traced step has none.
"""

import os
from contextlib import nullcontext as eagerly

from client import measure

import deepxde as dde
import unamp

BACKEND = os.environ["DDE_BACKEND"]

if BACKEND == "pytorch":
    from on_torch import native
elif BACKEND == "tensorflow":
    import tensorflow as tf
    from on_keras import eagerly


@unamp.float32_results
def widened(_, y):
    return y


def residual(x, y):
    if BACKEND == "tensorflow" and tf.executing_eagerly():
        return y + 2.0
    second = dde.grad.hessian(y, x)
    return (second[0] if isinstance(second, tuple) else second) + 2.0


def build(region):
    dde.config.set_random_seed(0)
    geometry = dde.geometry.Interval(-1, 1)
    edge = dde.icbc.DirichletBC(geometry, lambda x: 0, lambda _, on_boundary: on_boundary)
    data = dde.data.PDE(geometry, residual, edge, 32, 2, train_distribution="uniform")
    net = dde.nn.FNN([1, 64, 64, 1], "tanh", "Glorot uniform")
    net.apply_output_transform(widened)
    model = dde.Model(data, net)
    model.compile("sgd", lr=1e-3)

    def step():
        with region():  # DeepXDE's loop takes several steps in one region
            history, _ = model.train(iterations=5, display_every=5, verbose=0)
        return sum(history.loss_train[-1])

    return step


measure(build, (lambda: build(native)) if BACKEND == "pytorch" else None, eagerly)
