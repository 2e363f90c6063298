"""The newest release of every framework, as pip installs it today: ``make newest``.

Each gets an environment of its own, without this project's pins. README's install line must be
enough for the framework's first example, which runs and must print the output in the document. Then
``unamp doctor`` and a thorough run of conformance on the CPU follow. unamp is installed from a
wheel: the checkout is on no path. The environment is deleted at the end.

Arguments name frameworks: ``python conformance/newest.py torch jax``, or a version of one:
``torch==2.13.0``. Any fault is a failure: a new release that breaks something breaks it for
everybody who installs today.

``--wheel PATH`` installs unamp from an existing wheel. Then no compiler is on PATH, libraries that
a user has built are not found, and the wheel's compiled parts must run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import ROOT
from wheels import without_wheels

#: Extras of pyproject.toml: those of the install line, and those that the suite also needs.
EXTRAS = {
    "torch": ("torch", "conformance"),
    "paddle": ("paddle", "conformance"),
    "mindspore": ("mindspore", "conformance"),
    "tensorflow": ("tensorflow-cpu", "conformance"),  # the build without CUDA
    "jax": ("jax", "conformance,jax-libraries"),
}

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Failure(Exception):
    """A step failed; the message names the step, and quotes its output."""


def first_example(framework: str) -> tuple[str, str]:
    """Return a framework's first example in the documents, and the output that it must have."""
    texts = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/first-steps.md"))
    blocks = (match.groups() for text in texts for match in _EXAMPLE.finditer(text))
    return next(
        (code, prints)
        for code, prints in blocks
        if re.search(rf"^import {framework}\b", code, re.MULTILINE)
    )


def examine(
    framework: str,
    home: Path,
    requirement: str = "",
    wheel: Path | None = None,
    *,
    brief: bool = False,
) -> str:
    """Install a release of a framework and run all steps on it; return conformance's verdict.

    Args:
        framework: the framework.
        home: the folder for the environment.
        requirement: the version for pip, such as ``torch==2.13.0``; the newest where it is empty.
        wheel: the wheel of unamp; None builds one from the checkout.
        brief: whether conformance draws a part of its checks instead of running all.

    Raises:
        Failure: where one of the steps fails.
    """
    library, suite = EXTRAS[framework]
    python = str(home / "bin/python")
    _step("make an environment", sys.executable, "-m", "venv", str(home))
    variables = {} if wheel is None else _without_compiler(home)
    _install(python, library, requirement, wheel, variables)
    code, prints = first_example(framework)
    printed = _step("run the first example", python, "-c", code, cwd=home, variables=variables)
    if _lines(printed) != _lines(prints):
        raise Failure(f"the first example prints\n{printed}\nand not\n{prints}")
    _install(python, suite, requirement, wheel, variables)
    command = str(home / "bin/unamp")
    doctor = json.loads(
        _step("unamp doctor", command, "doctor", "--json", cwd=home, variables=variables)
    )
    found = next(report for report in doctor["frameworks"] if report["framework"] == framework)
    if found["status"] != "ready":
        raise Failure(f"unamp doctor calls {framework} {found['status']}: {found['advice']}")
    runs = "" if wheel is None or framework != "torch" else _kernels(found, wheel)
    selection = ("--framework", framework, "--device", "cpu", *(() if brief else ("--thorough",)))
    said = _step("conformance", command, "conformance", *selection, cwd=home, variables=variables)
    return f"{found['version']}: {runs}{_lines(said)[-1]}"


def _without_compiler(home: Path) -> dict[str, str]:
    """Return variables under which only the environment's own programs are found.

    Libraries that a user has built are not found either.
    """
    return {"PATH": str(home / "bin"), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": ""}


def _kernels(found: Mapping[str, Any], wheel: Path) -> str:
    """Return the language in which the kernels of PyTorch's adapter run.

    Raises:
        Failure: where they run in Python, although the wheel brings them.
    """
    runs, minor = found["runtime"]["kernels"], ".".join(found["version"].split(".")[:2])
    file = f"torch-{minor}/unamp_torch_kernels.cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    with zipfile.ZipFile(wheel) as archive:
        brought = any(file in name and name.endswith(".so") for name in archive.namelist())
    if brought and runs != "C++":
        raise Failure(
            f"the wheel brings {file}, but unamp doctor says that kernels are in {runs}: "
            f"{found['runtime']}"
        )
    return f"kernels in {runs}{'' if brought else ', of which the wheel brings none'}; "


def _install(
    python: str, extras: str, requirement: str, wheel: Path | None, variables: Mapping[str, str]
) -> None:
    wanted = [f"{wheel or ROOT}[{extras}]", *([requirement] if requirement else [])]
    command = (python, "-m", "pip", "install", "--quiet", "--no-compile", *wanted)
    _step(f"pip install '{wheel.name if wheel else '.'}[{extras}]'", *command, variables=variables)


def _step(
    what: str, *command: str, cwd: Path = ROOT, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command and return what it printed.

    Raises:
        Failure: where it fails.
    """
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | dict(variables or {}),
    )
    if done.returncode:
        raise Failure(f"{what}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _chosen(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the frameworks that are asked for, or all, and what pip is told of their versions.

    Those without a wheel for this Python are named and left out.
    """
    named = {argument: argument.partition("==")[::2] for argument in arguments or EXTRAS}
    if unknown := {framework for framework, _ in named.values()} - EXTRAS.keys():
        sys.exit(
            f"unknown framework {min(unknown)!r}; valid: {', '.join(EXTRAS)}, "
            "and versions such as torch==2.13.0"
        )
    listed = tomllib.loads((ROOT / "conformance/versions.toml").read_text("utf-8"))
    for framework, version in named.values():
        if framework in without_wheels():
            print(f"{framework}: left out, it offers no wheel for this Python")
        else:
            yield framework, f"{listed[framework]['package']}=={version}" if version else ""


def main(arguments: Sequence[str]) -> int:
    """Examine the chosen frameworks, one after the other; return 1 where one fails."""
    parser = argparse.ArgumentParser(
        description="The newest releases of the frameworks, as pip brings them today."
    )
    parser.add_argument(
        "chosen",
        nargs="*",
        metavar="FRAMEWORK[==VERSION]",
        help="every framework, where none is named",
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="PATH", help="take unamp from here, with no compiler on PATH"
    )
    parser.add_argument(
        "--brief", action="store_true", help="let conformance draw a part of its checks"
    )
    options = parser.parse_args(arguments)
    wheel = options.wheel.resolve(strict=True) if options.wheel else None
    passed = failed = 0
    for framework, requirement in _chosen(options.chosen):
        with tempfile.TemporaryDirectory(prefix=f"unamp-newest-{framework}-") as folder:
            try:
                said = examine(
                    framework, Path(folder, "environment"), requirement, wheel, brief=options.brief
                )
                print(f"{framework} {said}", flush=True)
                passed += 1
            except Failure as failure:
                failed += 1
                print(f"{framework}: FAILED at {failure}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
