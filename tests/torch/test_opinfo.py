"""The script `tests/torch/opinfo.py` reports right on a few operators and layers.

`make conformance-opinfo` runs it on all.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from elsewhere import Ended, in_turn

SCRIPT = Path(__file__).with_name("opinfo.py")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """Run the script three times.

    The first run has some operators and layers, the second another list of exceptions, the third an
    operator that does not exist.
    """
    other = tmp_path_factory.mktemp("opinfo") / SCRIPT.name
    other.write_text(SCRIPT.read_text("utf-8"), "utf-8")
    entry = '[[exception]]\nops = ["exp"]\ninputs = ["low"]\nkind = "differs"\nreason = "none"\n'
    other.with_suffix(".toml").write_text(entry, "utf-8")
    names = "einsum inner linalg.pinv cov dot nn.GRU nn.LSTMCell nn.Bilinear".split()
    return in_turn((SCRIPT, *names, "--samples=4"), (other, "exp", "dot"), (SCRIPT, "matmull"))


def test_composites_and_recurrent_layers_are_torchs_own(ended: list[Ended]) -> None:
    done = ended[0]
    assert done.code == 0, done.stdout + done.stderr
    assert "8 operators and layers" in done.stdout
    assert "listed, computed, first low inputs: dot" in done.stdout


def test_what_is_not_listed_and_what_is_listed_in_vain_fail(ended: list[Ended]) -> None:
    done = ended[1]
    assert done.code == 1
    assert (
        "not listed: dot [bfloat16, first low inputs] computed: dot : expected both vectors"
        in done.stdout
    )
    assert "listed, but the same: exp [float16, low inputs] differs" in done.stdout


def test_every_exception_has_a_reason_and_none_is_for_float32_inputs() -> None:
    entries = tomllib.loads(SCRIPT.with_suffix(".toml").read_text("utf-8"))["exception"]
    assert all(entry["reason"] and "float32" not in entry["inputs"] for entry in entries)


def test_a_name_that_pytorch_does_not_have(ended: list[Ended]) -> None:
    done = ended[2]
    assert done.code == 2
    assert "no operator or layer of PyTorch's tests is called matmull" in done.stderr
