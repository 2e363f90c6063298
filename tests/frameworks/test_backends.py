"""A wrong operation of one backend of Keras is found by comparing traces, and confirmed by running it again elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from elsewhere import python

import unamp

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "backends"

#: A network of Keras's layers, small beside that of the example.
NETWORK = """
import os
os.environ["KERAS_BACKEND"] = {backend!r}
import keras
import record
layers = keras.layers
record.run(
    keras.Sequential(
        [
            layers.Input((8, 8, 3)), layers.Conv2D(4, 3, strides=2, padding="same", name="conv"),
            layers.BatchNormalization(name="norm"), layers.ReLU(name="relu"), layers.Conv2D(4, 1, name="mixed"),
        ],
        name="net",
    ),
    {backend!r}, {folder!r}, {wrong!r},
)
"""


def test_a_wrong_batch_norm_is_found_and_confirmed(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    python(EXAMPLE, "-c", NETWORK.format(backend="tensorflow", folder=str(right), wrong=""))
    python(EXAMPLE, "-c", NETWORK.format(backend="jax", folder=str(wrong), wrong="wrong"))
    said = python(EXAMPLE, "-m", "unamp", "compare", str(right / "trace.json"), str(wrong / "trace.json"), code=1)
    assert "first batch_norm in Sequential.norm: error" in said
    assert "  the other: jax keras.layers.BatchNormalization in Sequential.norm, computed in float32" in said
    records = unamp.Trace.from_json((wrong / "trace.json").read_text("utf-8")).records
    assert [(record.op, record.call and record.call.left_out) for record in records] == [
        ("conv2d", ""), ("batch_norm", ""), ("relu", ""), ("conv2d", "")
    ]  # fmt: skip
    for number, code in ((1, 0), (2, 1), (4, 0)):
        command = ("replay", str(wrong / "trace.json"), str(number), "--framework", "tensorflow", "--json")
        found = json.loads(python(EXAMPLE, "-m", "unamp", *command, code=code))
        assert (found["framework"], found["within"]) == ("tensorflow", code == 0)
        assert found["original"]["framework"] == "jax"
        assert found["rows"][1]["error"] < 1e-6
    # What ran right came out otherwise than on the other backend all the same: it was given other numbers.
    assert "mixed" in said
