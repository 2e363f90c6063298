"""The steps that a release must pass: ``make release-check``. Nothing is uploaded.

All steps start from a fresh clone of the last commit. The sdist and the wheels are built
(`dist.py`). Pip chooses between the wheels in an empty environment of each Python on this machine.
Every framework's newest release runs its first example, ``unamp doctor`` and a brief conformance,
from the wheel with kernels, in an environment without a compiler (``conformance/newest.py``).
The version of PyTorch that the kernels are built for comes first. Links in the documents are
followed. Only a failed build ends the run. The work left for a person is printed at the end.

Arguments are those of ``newest.py``: ``python release/check.py jax torch==2.13.0``. Without any,
all frameworks run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "conformance"))

from versions import found_python  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

#: A program for an empty environment with only the wheel: it prints whether the wheel has kernels.
_BROUGHT = """
import importlib.util, pathlib, sys, unamp
assert unamp.__file__.startswith(sys.prefix), unamp.__file__
unamp.Policy(dtype="bfloat16", deny="softmax")
adapter = pathlib.Path(importlib.util.find_spec("unamp_torch").origin).parent
print("kernels" if any(adapter.glob("compiled/torch-*/*.so")) else "none")
"""

LEFT = """Left for a person:
- the version in unamp/_version.py, and what changed in CHANGELOG.md, under that version and \
today's date
- kernels for the other Pythons and minor versions of PyTorch: an environment for each (torch, \
ninja, setuptools), named to
  make dist PYTHONS="PATH PATH"; on a machine whose glibc is as old as users' are, since the \
wheel's tag says {tag}
- a look at the site, light and dark, at the width of a phone: make docs
- make test, make conformance-versions and make conformance-machines, where the last run is older \
than the last change
- the tag, and the upload of what is in dist/ (make dist, from the commit that is tagged: \
{commit})"""


def main(arguments: Sequence[str]) -> int:
    """Run every step, print the results and the work left; return 1 where a step failed."""
    parser = argparse.ArgumentParser(description="What a release must pass; nothing is uploaded.")
    parser.add_argument(
        "chosen",
        nargs="*",
        metavar="FRAMEWORK[==VERSION]",
        help="what to run from the wheel; else everything",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an environment with a torch, for dist.py",
    )
    options = parser.parse_args(arguments)
    failed = []
    with tempfile.TemporaryDirectory(prefix="unamp-release-") as folder:
        clone, dist = Path(folder, "unamp"), Path(folder, "dist")
        if _output("git", "status", "--porcelain", cwd=ROOT).strip():
            print("there are changes that are not committed: they are not in what is examined")
        _output("git", "clone", "--quiet", str(ROOT), str(clone), cwd=ROOT)
        commit = _output("git", "rev-parse", "HEAD", cwd=clone).strip()
        named = [argument for python in options.python for argument in ("--python", python)]
        if not _passes("build", clone, "release/dist.py", "--out", str(dist), *named):
            print("nothing was built, so nothing else can be looked at")
            return 1
        pure = next(dist.glob("*-none-any.whl"))
        (wheel,) = set(dist.glob("*.whl")) - {pure}
        failed += [
            python for python in PYTHONS if not _installs(python, wheel, pure, Path(folder, python))
        ]
        chosen = options.chosen or [
            *_built_for(),
            *("torch", "paddle", "mindspore", "tensorflow", "jax"),
        ]
        if not _passes(
            "frameworks", clone, "conformance/newest.py", "--brief", "--wheel", str(wheel), *chosen
        ):
            failed.append("frameworks")
        if not _passes(
            "links", clone, "-m", "pytest", "-q", "tests/core/test_docs.py", "-k", "links or named"
        ):
            failed.append("links")
        tag = wheel.stem.rpartition("-")[2]
    print(
        f"\nFAILED: {', '.join(failed)}" if failed else "\nAll steps passed.",
        LEFT.format(tag=tag, commit=commit),
        sep="\n\n",
    )
    return int(bool(failed))


def _installs(python: str, wheel: Path, pure: Path, home: Path) -> bool:
    """Install the wheels, one after the other, in empty environments of a Python.

    Return whether both work as they must.
    """
    interpreter = found_python(python)
    if interpreter is None:
        print(f"empty environment, Python {python}: left out, it is not on PATH")
        return True
    # Pip takes the best wheel of the folder, as it would from an index.
    for form, source, expected in (
        ("the wheel that pip chooses", ["--find-links", str(wheel.parent), "unamp"], "kernels"),
        ("the pure wheel", [str(pure)], "none"),
    ):
        environment = home / expected
        _output(interpreter, "-m", "venv", str(environment), cwd=ROOT)
        there = str(environment / "bin/python")
        without = {
            "PATH": str(environment / "bin"),
            "XDG_CACHE_HOME": str(environment / "cache"),
            "PYTHONPATH": "",
        }
        _output(
            there,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            *source,
            cwd=environment,
            **without,
        )
        said = _output(there, "-c", _BROUGHT, cwd=environment, **without).strip()
        print(f"empty environment, Python {python}, {form}: {said}", flush=True)
        if said != expected:
            return False
    return True


def _built_for() -> list[str]:
    """Return the PyTorch that this environment's kernels are for, in the words of `newest.py`."""
    found = re.match(
        r"[\d.]+", _output(sys.executable, "-c", "import torch; print(torch.__version__)", cwd=ROOT)
    )
    return [f"torch=={found[0]}"] if found else []


def _passes(what: str, clone: Path, *command: str) -> bool:
    """Run Python in the clone, with its packages, and show the output.

    Return whether it succeeds.
    """
    print(f"\n{what}", flush=True)
    path = os.pathsep.join(str(clone / folder) for folder in (".", "adapters", "conformance"))
    ran = subprocess.run(
        [sys.executable, *command], cwd=clone, env=os.environ | {"PYTHONPATH": path}, check=False
    )
    return ran.returncode == 0


def _output(*command: str, cwd: Path, **variables: str) -> str:
    """Return the output of a command.

    Raises:
        SystemExit: where it fails; its error is on the terminal.
    """
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | variables, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
