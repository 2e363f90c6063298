"""Run every folder of tests in a process of its own, and say at the end how all of them went.

PyTorch's is run twice, with its kernels in Python and in C++ (where there is a compiler, for which `make test` builds them).
The folder of a framework that offers no wheel for this Python is left out, and named.

A process of its own because two frameworks in one process get in each other's way: some pairs fail to load, one crashes.
Arguments are handed on to pytest.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "conformance"))

from wheels import without_wheels  # noqa: E402

#: What a folder's tests need where it is not called like it: Keras comes with TensorFlow.
NEEDS = {"keras_torch": "tensorflow"}


def suites() -> Iterator[tuple[str, Path, dict[str, str]]]:
    """What to run: what to call it, its folder, and what its environment adds."""
    for folder in sorted(path for path in HERE.iterdir() if any(path.glob("test_*.py"))):
        if NEEDS.get(folder.name, folder.name) in without_wheels():
            continue
        if folder.name != "torch":
            yield folder.name, folder, {}
            continue
        yield "torch", folder, {"UNAMP_TORCH_COMPILED": "0"}
        if shutil.which("c++"):
            yield "torch, compiled", folder, {"UNAMP_TORCH_COMPILED": "1"}


def run(suite: Path, environment: dict[str, str], report: Path, arguments: list[str]) -> tuple[int, int, int]:
    """How many tests of a folder passed, failed and were skipped; a folder that could not run is one failure."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(suite), f"--junitxml={report}", *arguments],
        cwd=HERE.parent,
        env=os.environ | environment,
        check=False,
    )
    if not report.exists():
        return 0, 1, 0
    count = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for totals in ElementTree.parse(report).getroot().iter("testsuite"):
        for key in count:
            count[key] += int(totals.get(key, 0))
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    return passed, max(failed, int(done.returncode != 0)), count["skipped"]


def main(arguments: list[str]) -> int:
    """Run all folders, print the totals, and return the exit status."""
    total = [0, 0, 0]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, suite, environment in suites():
            start = time.monotonic()
            counts = run(suite, environment, Path(folder) / f"{name}.xml", arguments)
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
            lines.append(f"{name}: {time.monotonic() - start:.0f} s, {_sentence(*counts)}")
    for framework in sorted(without_wheels()):
        lines.append(f"{framework}: left out, it offers no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}")
    print("", *lines, _sentence(*total), sep="\n", flush=True)
    return int(total[1] > 0 or total[0] == 0)


def _sentence(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
