"""Run every folder of tests in a process of its own, two at a time, and print the results.

Two frameworks in one process disturb each other: some pairs fail to load, one crashes. PyTorch's
folder runs twice, with kernels in Python and in C++ (where there is a compiler, with which `make
test` builds them). The second run leaves out tests that are marked ``either_kernels`` or
``beside_kernels``; `tests/torch/conftest.py` says why. The folder of a framework that offers no
wheel for this Python is left out, and named.

The output of a folder's tests is shown when they are done. Arguments are those of pytest.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "conformance"))

from wheels import without_wheels  # noqa: E402

#: The most processes at a time: each takes up to two GB of memory, and a core.
JOBS = min(2, os.cpu_count() or 1)

#: What two folders at a time need: threads that wait for work leave the processor to the other one.
SHARING = {"OMP_WAIT_POLICY": "passive"}

#: The folders that take longest; they begin first.
LONGEST = ("torch", "jax", "mindspore", "tensorflow", "conformance")

#: The framework that a folder needs, where the folder has another name: TensorFlow brings Keras.
NEEDS = {"keras_torch": "tensorflow"}

#: The tests that also run with PyTorch's compiled kernels.
NEED_KERNELS = "not (either_kernels or beside_kernels)"


def suites() -> Iterator[tuple[str, tuple[str, ...], dict[str, str]]]:
    """Yield the runs: the name, pytest's arguments, and the variables to add."""
    folders = sorted(path for path in HERE.iterdir() if any(path.glob("test_*.py")))
    for folder in sorted(
        folders, key=lambda path: LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
    ):
        if NEEDS.get(folder.name, folder.name) in without_wheels():
            continue
        if folder.name != "torch":
            yield folder.name, (str(folder),), {}
            continue
        yield "torch", (str(folder),), {"UNAMP_TORCH_COMPILED": "0"}
        if shutil.which("c++"):
            yield (
                "torch, compiled",
                (str(folder), "-m", NEED_KERNELS),
                {"UNAMP_TORCH_COMPILED": "1"},
            )


class Outcome(NamedTuple):
    """The outcome of a folder's tests.

    It has the numbers of passed, failed and skipped tests, the seconds, and the output.
    """

    passed: int
    failed: int
    skipped: int
    seconds: float
    said: str


def run(
    suite: tuple[str, ...], environment: dict[str, str], report: Path, arguments: list[str]
) -> Outcome:
    """Run the tests of a folder; tests that could not run count as one failure."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suite, f"--junitxml={report}", *arguments],
        cwd=HERE.parent,
        env=SHARING | os.environ | environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    seconds = time.monotonic() - start
    if not report.exists():
        return Outcome(0, 1, 0, seconds, done.stdout)
    count = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for totals in ElementTree.parse(report).getroot().iter("testsuite"):
        for key in count:
            count[key] += int(totals.get(key, 0))
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    return Outcome(
        passed, max(failed, int(done.returncode != 0)), count["skipped"], seconds, done.stdout
    )


def main(arguments: list[str]) -> int:
    """Run all folders, print the totals, and return the exit status."""
    total = [0, 0, 0]
    lines = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        begun: dict[Future[Outcome], str] = {
            pool.submit(run, suite, environment, Path(folder) / f"{name}.xml", arguments): name
            for name, suite, environment in suites()
        }
        for future in as_completed(begun):
            outcome = future.result()
            print(outcome.said, flush=True)
            counts = outcome.passed, outcome.failed, outcome.skipped
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
            lines.append(f"{begun[future]}: {outcome.seconds:.0f} s, {_sentence(*counts)}")
    for framework in sorted(without_wheels()):
        lines.append(
            f"{framework}: left out, "
            f"it offers no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    print("", *lines, _sentence(*total), sep="\n", flush=True)
    return int(total[1] > 0 or total[0] == 0)


def _sentence(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
