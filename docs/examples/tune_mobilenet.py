"""Tune MobileNetV2 of keras.applications, on TensorFlow or on another backend that is named."""

import os
import sys
import time

os.environ["KERAS_BACKEND"] = sys.argv[1] if len(sys.argv) > 1 else "tensorflow"

import keras
import numpy as np

import unamp


def pictures(seed: int) -> np.ndarray:
    """Return a batch of four."""
    return np.random.default_rng(seed).normal(size=(4, 32, 32, 3)).astype("float32")


keras.utils.set_random_seed(0)
net = keras.applications.MobileNetV2(
    (32, 32, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None
)
for seed in range(1000, 1020):
    net(pictures(seed), training=True)  # running statistics of what comes

began = time.process_time()
tuned = unamp.tune(
    lambda x: net(x, training=False),
    net,
    [pictures(seed) for seed in range(8)],
    dtype="bfloat16",
    tolerance=3e-3,
    budget=400,
    progress=lambda step: print(f"\r{step}", end="", file=sys.stderr),
)
print(tuned.table())
print(f"{time.process_time() - began:.0f} s of processor time")
with tuned.region(net):
    print(net(pictures(100), training=False).dtype)
