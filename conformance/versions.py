"""Run the suite on the frameworks' versions, on each Python: ``make conformance-versions``.

Each version is installed into an environment of its own, which is deleted after its run: frameworks
are large. The suite runs from the checkout. The results are kept in
``conformance/results/versions.json``, and shown in ``docs/versions.md``.

Arguments choose rows: ``python conformance/versions.py torch paddle==3.3.0 mindspore@3.12
tensorflow==2.21.0@3.13``. All others keep their results. A Python is looked for among those named
with ``--python PATH``, then the running one, then on PATH, as ``python3.13``. Rows whose Python is
not found are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rows import ROOT, cells, commit, last_line, numbers, run, sentence, suite
from rows import keep as keep_row

ENVIRONMENTS = ROOT / ".venv-versions"
RESULTS = ROOT / "conformance/results/versions.json"
TABLE = ROOT / "docs/versions.md"

#: The suite's requirements beside the framework, in any version that fits; and a package that
#: Paddle 3.2 imports without requiring it.
NEEDED = ("numpy", "typer", "rich", "jinja2", "setuptools")

_INSTALLING = 1800  # seconds

_HEAD = """# Versions

What `make conformance-versions` found: for each version an environment of its own, \
`unamp doctor`, and conformance on a CPU.
*Refused* means that a region raises an error with that message, and that nothing was changed. \
*No wheel* means that the
framework offers none for that Python.
The table is generated; the versions are listed in [versions.toml](../conformance/versions.toml).

| framework | version | Python | result | examined on | at commit |
|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """One version of a framework on one Python, with the libraries beside it.

    A Python is given by the first two numbers of its version.
    """

    framework: str
    package: str
    version: str
    python: str
    libraries: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.framework} {self.version} on Python {self.python}"


def main(arguments: Sequence[str]) -> int:
    """Run the chosen rows, one version at a time, and write the table after each."""
    parser = argparse.ArgumentParser(
        description="Which versions of the frameworks conform, on which Python."
    )
    parser.add_argument(
        "chosen",
        nargs="*",
        metavar="FRAMEWORK[==VERSION][@PYTHON]",
        help="everything, where none is named",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter; repeat for more",
    )
    options = parser.parse_args(arguments)
    left_out = []
    for row in chosen(options.chosen):
        print(f"{row}: ", end="", flush=True)
        interpreter = found_python(row.python, options.python)
        if interpreter is None:
            left_out.append(row.python)
            print(f"left out: no Python {row.python} here")
            continue
        found = examined(row, interpreter)
        print(sentence(found))
        keep(row, found)
    for python in sorted(set(left_out)):
        print(
            (
                f"there is no Python {python} here: put python{python} on PATH, "
                "or name one with --python"
            ),
            file=sys.stderr,
        )
    return 1 if left_out else 0


def keep(row: Row, found: dict[str, Any]) -> None:
    """Write the result of one version into the file of rows, and the page."""
    keep_row(RESULTS, TABLE, (row.framework, row.version, row.python), found, table)


def chosen(arguments: Sequence[str]) -> Iterator[Row]:
    """Yield the rows that the arguments name; all without arguments.

    A version that is not listed gets the running Python.
    """
    listed = tomllib.loads((ROOT / "conformance/versions.toml").read_text("utf-8"))
    for argument in arguments or listed:
        match = re.fullmatch(r"(\w+)(?:==([\w.+]+))?(?:@(\d+\.\d+))?", argument)
        if match is None:
            sys.exit(
                f"{argument!r} is no FRAMEWORK[==VERSION][@PYTHON], such as torch, "
                "paddle==3.3.0 or tensorflow==2.21.0@3.13"
            )
        framework, version, python = match.groups()
        if framework not in listed:
            sys.exit(f"unknown framework {framework!r}; valid: {', '.join(listed)}")
        versions = listed[framework]["versions"]
        rows = {version: versions.get(version) or [_running()]} if version else versions
        for which, pythons in rows.items():
            for one in (
                [python] if python and (version or python in pythons) else [] if python else pythons
            ):
                yield Row(
                    framework,
                    listed[framework]["package"],
                    which,
                    one,
                    tuple(listed[framework].get("libraries", ())),
                )


def found_python(python: str, given: Sequence[str] = ()) -> str | None:
    """Return the interpreter of a Python: a given one, the running one, one on PATH, or None."""
    for candidate in (*given, sys.executable, shutil.which(f"python{python}")):
        if (
            candidate is not None
            and _answer(candidate, "import sys; print('%d.%d' % sys.version_info[:2])") == python
        ):
            return candidate
    return None


def _running() -> str:
    return "{}.{}".format(*sys.version_info)


def _answer(interpreter: str, program: str) -> str | None:
    """Return the output of a program, or None where it does not run.

    A pyenv's shim for a Python that is not active does not run.
    """
    try:
        ran = subprocess.run(
            [interpreter, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def examined(row: Row, interpreter: str) -> dict[str, Any]:
    """Return the outcome of one version."""
    home = ENVIRONMENTS / f"{row.framework}-{row.version}-{row.python}"
    program = (
        "import platform as p; print(f'Python {p.python_version()}, {p.system()} {p.machine()}')"
    )
    where = _answer(interpreter, program)
    try:
        return {"where": where, "commit": commit(), **_outcome(row, interpreter, home)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _outcome(row: Row, interpreter: str, home: Path) -> dict[str, Any]:
    made = subprocess.run(
        [interpreter, "-m", "venv", "--clear", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        return {"result": "no environment", "message": last_line(made.stdout + made.stderr)}
    python, requirement = home / "bin/python", f"{row.package}=={row.version}"
    install = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--no-compile",
        requirement,
        *row.libraries,
        *NEEDED,
    )
    installed = run(python, *install, cwd=home, timeout=_INSTALLING)
    if installed.returncode:
        return _not_installed(installed.stderr, requirement)
    doctor = run(python, "-m", "unamp", "doctor", "--json", cwd=home)
    if doctor.returncode not in (0, 1):
        # status 1: a framework cannot be used, and the report says why
        return {"result": "unamp doctor fails", "message": last_line(doctor.stderr)}
    report = next(
        r for r in json.loads(doctor.stdout)["frameworks"] if r["framework"] == row.framework
    )
    if report["status"] != "ready":
        return {"result": "refused", "message": _said(report["advice"], home)}
    return suite(python, row.framework, "--thorough", output=home / "results")[0]


def _not_installed(said: str, requirement: str) -> dict[str, Any]:
    # without a network, pip ends with the same message
    if f"No matching distribution found for {requirement}" in said and "Retrying" not in said:
        return {"result": "no wheel", "message": ""}
    return {"result": "does not install", "message": last_line(said)}


def _said(advice: str, home: Path) -> str:
    """Return an error's message, without its class and without the folder of the run."""
    return re.sub(
        rf" \({re.escape(str(home))}[^)]*\)", "", re.sub(r"^unamp\.errors\.\w+: ", "", advice)
    )


def table(known: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the text of the page."""
    lines = []
    for framework, versions in sorted(known.items()):
        for version, pythons in sorted(versions.items(), key=lambda item: numbers(item[0])):
            for python, found in sorted(pythons.items(), key=lambda item: numbers(item[0])):
                lines.append(
                    cells(
                        framework, version, python, sentence(found), found["where"], found["commit"]
                    )
                )
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
