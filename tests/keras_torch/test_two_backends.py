"""A layer of Keras answers in the same dtype on PyTorch as on TensorFlow, under the same policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("layer_dtypes.py")


def test_every_layer_answers_in_the_same_dtype() -> None:
    running = {
        backend: subprocess.Popen(
            [sys.executable, SCRIPT],
            env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for backend in ("torch", "tensorflow")
    }
    on_torch, on_tensorflow = (json.loads(process.communicate()[0]) for process in running.values())
    assert {*on_torch.values()} == {"float32", "bfloat16"}
    assert {name: (dtype, on_tensorflow[name]) for name, dtype in on_torch.items() if dtype != on_tensorflow[name]} == {}
