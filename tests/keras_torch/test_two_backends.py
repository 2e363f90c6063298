"""A layer of Keras has the same result dtype on PyTorch as on TensorFlow, under each policy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("layer_dtypes.py")


@pytest.mark.filterwarnings("ignore")
def test_every_layer_answers_in_the_same_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with subprocess.Popen([sys.executable, SCRIPT], stdout=subprocess.PIPE, text=True) as other:
        spec = importlib.util.spec_from_file_location("layer_dtypes", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        here = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(here)
        on_torch, on_tensorflow = here.answered(), json.loads(other.communicate()[0])
    assert {*on_torch.values()} == {"float32", "bfloat16"}
    assert {
        name: (dtype, on_tensorflow[name])
        for name, dtype in on_torch.items()
        if dtype != on_tensorflow[name]
    } == {}
