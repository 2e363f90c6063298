"""Comparing traces finds a wrong operation of one of Keras' backends.

Running the operation again on another backend confirms the defect.
"""

from __future__ import annotations

import json
from pathlib import Path

from commanded import invoke
from elsewhere import in_turn

import unamp

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "backends"

#: A network of Keras' layers, smaller than that of the example.
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
"""  # noqa: E501


def test_a_wrong_batch_norm_is_found_and_confirmed(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    made, spoilt = tmp_path / "made.py", tmp_path / "spoilt.py"
    made.write_text(NETWORK.format(backend="tensorflow", folder=str(right), wrong=""))
    spoilt.write_text(NETWORK.format(backend="jax", folder=str(wrong), wrong="wrong"))
    again = ("-m", "unamp", "replay", "--framework", "tensorflow", "--json", wrong / "trace.json")
    [run] = in_turn([spoilt], path=EXAMPLE)
    # TensorFlow's process also runs operations again
    *ended, other = in_turn(*((*again, number) for number in (1, 2, 4)), [made], path=EXAMPLE)
    assert [run.code, other.code] == [0, 0], (run, other)
    compared = invoke("compare", right / "trace.json", wrong / "trace.json")
    assert compared.exit_code == 1
    said = compared.stdout
    assert "first batch_norm in Sequential.norm: error" in said
    assert (
        "  the other: jax keras.layers.BatchNormalization in Sequential.norm, computed in float32"
        in said
    )
    records = unamp.Trace.from_json((wrong / "trace.json").read_text("utf-8")).records
    assert [(record.op, record.call and record.call.left_out) for record in records] == [
        ("conv2d", ""), ("batch_norm", ""), ("relu", ""), ("conv2d", "")
    ]  # fmt: skip
    assert [done.code for done in ended] == [0, 1, 0], ended
    for done in ended:
        found = json.loads(done.stdout)
        assert (found["framework"], found["within"]) == ("tensorflow", done.code == 0)
        assert found["original"]["framework"] == "jax"
        assert found["rows"][1]["error"] < 1e-6
    # Right operations, too, have results other than on the other backend, since their inputs
    # differ.
    assert "mixed" in said
