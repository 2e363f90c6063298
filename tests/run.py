"""Run every folder of tests in a process of its own, and say at the end how all of them went.

A process of its own because two frameworks in one process get in each other's way: some pairs fail to load, one crashes.
Arguments are handed on to pytest.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent


def run(suite: Path, report: Path, arguments: list[str]) -> tuple[int, int, int]:
    """How many tests of a folder passed, failed and were skipped; a folder that could not run is one failure."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(suite), f"--junitxml={report}", *arguments], cwd=HERE.parent, check=False
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
        for suite in sorted(path for path in HERE.iterdir() if any(path.glob("test_*.py"))):
            start = time.monotonic()
            counts = run(suite, Path(folder) / f"{suite.name}.xml", arguments)
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
            lines.append(f"{suite.name}: {time.monotonic() - start:.0f} s, {_sentence(*counts)}")
    print("", *lines, _sentence(*total), sep="\n", flush=True)
    return int(total[1] > 0 or total[0] == 0)


def _sentence(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
