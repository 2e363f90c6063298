"""Each pair of scripts in docs/examples/moving trains to the same weights, before and after.

The bound follows from the roundings. Each step moves the weights by at most RATE * MAX_NORM, and by
the momentum of earlier steps. All steps together move them by PATH at most. Two runs of the same
function differ only by their roundings. Roundings change the gradient of a step by a small SHARE of
it, and so the weights by that share of the path. (A difference in the weights changes later
gradients, too. Short steps, with which training does not diverge, do not multiply the difference.)

The share counts roundings, each of the relative size `UNIT`. Roundings happen in images, kernel,
convolution, norm, activation, pooling, matrix and product, and as many times on the way back: 16,
in each of two scripts. A norm subtracts means; errors stay as large and numbers become smaller:
twice. In float32 sums round as well: eight times. In a low dtype they do not, since sums are
float32.

float32 finds a wrong layout, momentum or epsilon; float16 is the dtype that users train in.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from documents import EXAMPLES
from wheels import without_wheels

SCRIPTS = EXAMPLES / "moving"
sys.path.insert(0, str(SCRIPTS))
import images  # noqa: E402

UNIT = {"float16": 2.0**-11, "float32": 8 * 2.0**-24}
SHARE = 2 * 2 * 16
PATH = (
    images.RATE
    * images.MAX_NORM
    * sum((1 - images.MOMENTUM**n) / (1 - images.MOMENTUM) for n in range(1, images.STEPS + 1))
)

#: Run a script once for each folder, with the folder's name as its dtype. One process imports the
#: framework once.
RUN = """
import runpy, sys
script, *folders = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
for folder in folders:
    sys.argv = [script, folder, "--dtype", folder.rpartition("/")[2]]
    runpy.run_path(script, run_name="__main__")
"""


class Pair(NamedTuple):
    """Two scripts, and the names of a norm's running mean and variance in the script before."""

    before: str
    after: str
    mean: str
    variance: str

    def frameworks(self) -> set[str]:
        return {
            "tensorflow" if name.startswith("keras") else name.partition("_")[0]
            for name in (self.before, self.after)
        }


PAIRS = [
    Pair("torch_before", "keras_after", "1.running_mean", "1.running_var"),
    Pair("torch_before", "mindspore_after", "1.running_mean", "1.running_var"),
    Pair("paddle_before", "torch_after", "1._mean", "1._variance"),
]


PRESENT = [pair for pair in PAIRS if not pair.frameworks() & without_wheels()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a subfolder for each dtype, in which all scripts have trained.

    The scripts before run first. Each script has a process of its own.
    """
    made = tmp_path_factory.mktemp("moving")
    for dtype in UNIT:
        (made / dtype).mkdir()
    for scripts in ({pair.before for pair in PRESENT}, {pair.after for pair in PRESENT}):
        with ThreadPoolExecutor(2) as two:  # importing frameworks takes most of the time
            assert dict(two.map(partial(_run, made), sorted(scripts))) == dict.fromkeys(scripts, "")
    return made


def _run(folder: Path, name: str) -> tuple[str, str]:
    """Run a script; return its name and, where it failed, its output."""
    command = [
        sys.executable,
        "-c",
        RUN,
        str(SCRIPTS / f"{name}.py"),
        *(str(folder / dtype) for dtype in UNIT),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return name, done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("pair", PRESENT, ids=lambda pair: f"{pair.before} {pair.after}")
def test_after_ends_where_before_does(trained: Path, pair: Pair, dtype: str) -> None:
    start, before, after = (
        np.load(trained / dtype / f"{name}.npz") for name in (_start(pair), pair.before, pair.after)
    )
    assert set(after) == set(before) - {"1.num_batches_tracked"}
    allowed = SHARE * UNIT[dtype] * PATH
    for name in set(after) - {pair.mean, pair.variance}:
        # the training has moved the weights, so agreement means something
        assert np.linalg.norm(before[name] - start[name]) > allowed, name
        assert np.linalg.norm(after[name] - before[name]) <= allowed, name


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("pair", PRESENT, ids=lambda pair: f"{pair.before} {pair.after}")
def test_running_statistics_move_too(trained: Path, pair: Pair, dtype: str) -> None:
    """A kernel has 9 numbers, and an image's numbers are at most 1.

    So the input of a norm moves by at most 3 times as much as the kernel.
    """
    before, after = (np.load(trained / dtype / f"{name}.npz") for name in (pair.before, pair.after))
    share, moved = SHARE * UNIT[dtype], 3 * SHARE * UNIT[dtype] * PATH
    mean, variance = before[pair.mean], before[pair.variance]
    deviation = np.sqrt(variance.max())
    assert np.all(np.abs(after[pair.mean] - mean) <= moved + share * deviation)
    # PyTorch and MindSpore divide a variance by the count less one, Keras and Paddle by the count.
    unbiased = 1 / (images.IMAGES * 8 * 8 - 1)
    assert np.all(
        np.abs(after[pair.variance] - variance)
        <= 2 * deviation * moved + (share + unbiased) * variance
    )


def _start(pair: Pair) -> str:
    return pair.before.replace("before", "start")
