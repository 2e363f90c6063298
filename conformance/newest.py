"""The newest release of every framework, as pip brings it today: ``make newest``.

Each gets an environment of its own, without this project's pins. In it: the install line of README, which must be enough for
the framework's first example; that example, with what the document says that it prints; ``unamp doctor``; and conformance on
the CPU. unamp itself is installed as a wheel: the checkout is on no path. The environment is deleted after its run.

Arguments choose frameworks: ``python conformance/newest.py torch jax``. Anything that fails is a failure: a new release
that breaks something breaks it for everybody who installs today.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rows import ROOT
from wheels import without_wheels

#: Extras of pyproject.toml: what the install line names, and what the suite needs besides.
EXTRAS = {
    "torch": ("torch", "conformance"),
    "paddle": ("paddle", "conformance"),
    "mindspore": ("mindspore", "conformance"),
    "tensorflow": ("tensorflow-cpu", "conformance"),  # the build without CUDA
    "jax": ("jax", "conformance,jax-libraries"),
}
#: One low dtype: the other takes the same ways through a framework, and the suite of pinned versions has both.
SELECTION = ("--device", "cpu", "--dtype", "bfloat16", "--thorough")

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Failure(Exception):
    """A step that failed; the message says which, and what it printed."""


def first_example(framework: str) -> tuple[str, str]:
    """Return a framework's first example in the documents, and what it prints."""
    texts = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/first-steps.md"))
    blocks = (match.groups() for text in texts for match in _EXAMPLE.finditer(text))
    return next((code, prints) for code, prints in blocks if re.search(rf"^import {framework}\b", code, re.MULTILINE))


def examine(framework: str, home: Path) -> str:
    """Install the newest release of a framework into a folder and run what users run; return what conformance said.

    Raises:
        Failure: where one of the steps fails.
    """
    library, suite = EXTRAS[framework]
    python = str(home / "bin/python")
    _step("make an environment", sys.executable, "-m", "venv", str(home))
    _install(python, library)
    code, prints = first_example(framework)
    printed = _step("run the first example", python, "-c", code, cwd=home)
    if _lines(printed) != _lines(prints):
        raise Failure(f"the first example prints\n{printed}\nand not\n{prints}")
    _install(python, suite)
    command = str(home / "bin/unamp")
    doctor = json.loads(_step("unamp doctor", command, "doctor", "--json", cwd=home))
    found = next(report for report in doctor["frameworks"] if report["framework"] == framework)
    if found["status"] != "ready":
        raise Failure(f"unamp doctor calls {framework} {found['status']}: {found['advice']}")
    said = _step("conformance", command, "conformance", "--framework", framework, *SELECTION, cwd=home)
    return f"{found['version']}: {_lines(said)[-1]}"


def _install(python: str, extras: str) -> None:
    _step(f"pip install '.[{extras}]'", python, "-m", "pip", "install", "--quiet", "--no-compile", f"{ROOT}[{extras}]")


def _step(what: str, *command: str, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed.

    Raises:
        Failure: where it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise Failure(f"{what}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _chosen(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the frameworks that are asked for, or all; those without a wheel for this Python are named and left out."""
    if unknown := set(arguments) - EXTRAS.keys():
        sys.exit(f"unknown framework {min(unknown)!r}; valid: {', '.join(EXTRAS)}")
    for framework in arguments or EXTRAS:
        if framework in without_wheels():
            print(f"{framework}: left out, it offers no wheel for this Python")
        else:
            yield framework


def main(arguments: Sequence[str]) -> int:
    """Examine the chosen frameworks, one after the other; return 1 where one fails."""
    passed = failed = 0
    for framework in _chosen(arguments):
        with tempfile.TemporaryDirectory(prefix=f"unamp-newest-{framework}-") as folder:
            try:
                print(f"{framework} {examine(framework, Path(folder, 'environment'))}", flush=True)
                passed += 1
            except Failure as failure:
                failed += 1
                print(f"{framework}: FAILED at {failure}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
