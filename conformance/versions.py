"""Which versions of the frameworks conform: ``make conformance-versions``.

Each version is installed into an environment of its own, which is deleted after its run: frameworks are large. The suite runs
from the checkout. What came of it is kept in ``conformance/results/versions.json``, and shown in ``docs/versions.md``.

Arguments choose: ``python conformance/versions.py torch paddle==3.3.0``. What is not chosen keeps its result.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-versions"
RESULTS = ROOT / "conformance/results/versions.json"
TABLE = ROOT / "docs/versions.md"

#: What the suite needs beside the framework, in whatever version goes with it.
NEEDED = ("numpy", "typer", "rich", "jinja2")

_INSTALLING, _RUNNING = 1800, 3600  # seconds

_HEAD = """# Versions

What `make conformance-versions` found: for each version an environment of its own, `unamp doctor`, and conformance on a CPU.
*Refused* means that a region raises an error with that message, and that nothing was changed.
The table is generated; the versions are listed in [versions.toml](../conformance/versions.toml).

| framework | version | result | Python, system |
|---|---|---|---|
"""


def main(arguments: Sequence[str]) -> int:
    """Run what was chosen, one version at a time, and write the table after each."""
    for framework, package, version in chosen(arguments):
        print(f"{framework} {version}: ", end="", flush=True)
        found = examined(framework, package, version)
        print(sentence(found))
        keep(framework, version, found)
    return 0


def keep(framework: str, version: str, found: dict[str, Any]) -> None:
    """Write down what came of one version, beside what is there by now: another run may have written meanwhile."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    known.setdefault(framework, {})[version] = found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    TABLE.write_text(table(known), "utf-8")


def chosen(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Framework, package and version of everything that the arguments name, or of all."""
    listed = tomllib.loads((ROOT / "conformance/versions.toml").read_text("utf-8"))
    wanted = dict(argument.partition("==")[::2] for argument in arguments)
    if unknown := sorted(set(wanted) - set(listed)):
        sys.exit(f"unknown framework {unknown[0]!r}; valid: {', '.join(listed)}")
    for framework, entry in listed.items():
        if framework in wanted or not wanted:
            only = wanted.get(framework)
            yield from ((framework, entry["package"], version) for version in ([only] if only else entry["versions"]))


def examined(framework: str, package: str, version: str) -> dict[str, Any]:
    """What came of one version."""
    home = ENVIRONMENTS / f"{framework}-{version}"
    where = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        return {"where": where, **_outcome(framework, f"{package}=={version}", home)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _outcome(framework: str, requirement: str, home: Path) -> dict[str, Any]:
    venv.create(home, clear=True, with_pip=True)
    install = ("-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile", requirement, *NEEDED)
    installed = _run(home, *install, timeout=_INSTALLING)
    if installed.returncode:
        return {"result": "does not install", "message": _last_line(installed.stderr)}
    doctor = _run(home, "-m", "unamp", "doctor", "--json")
    if doctor.returncode:
        return {"result": "unamp doctor fails", "message": _last_line(doctor.stderr)}
    report = next(r for r in json.loads(doctor.stdout) if r["framework"] == framework)
    if report["status"] != "ready":
        return {"result": "refused", "message": _said(report["advice"], home)}
    output = ["--output", str(home / "results")]
    run = _run(home, "-m", "unamp_conformance", "--framework", framework, "--device", "cpu", "--json", *output)
    try:
        (found,) = json.loads(run.stdout)["runs"]
    except (ValueError, KeyError):
        return {"result": "conformance fails to run", "message": _last_line(run.stderr)}
    wrong = list(dict.fromkeys([*(u["key"] for u in found["unexpected"]), *found["problems"]]))
    ended = "" if found["ended"] == "finished" else found["ended"]
    result = "fails" if wrong or ended else "conforms"
    return {"result": result, "message": ended, "checks": found["checks"], "wrong": wrong[:20]}


def _run(home: Path, *arguments: str, timeout: float = _RUNNING) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "adapters", "conformance"))
    command = [str(home / "bin/python"), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=home,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not finished within {timeout:.0f} seconds")


def _said(advice: str, home: Path) -> str:
    """An error's message, without its class and without where it was run."""
    return re.sub(rf" \({re.escape(str(home))}[^)]*\)", "", re.sub(r"^unamp\.errors\.\w+: ", "", advice))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()


def sentence(found: dict[str, Any]) -> str:
    """What came of a version, for people."""
    counts = ", ".join(f"{number} {status}" for status, number in found.get("checks", {}).items())
    first = ", ".join(found.get("wrong", ())[:3])
    said = "; ".join(filter(None, (found["message"], counts, first and f"first: {first}")))
    return f"{found['result']}: {said}" if said else found["result"]


def table(known: dict[str, dict[str, Any]]) -> str:
    """The page."""
    lines = []
    for framework, versions in sorted(known.items()):
        for version in sorted(versions, key=lambda v: [int(part) for part in v.split(".")]):
            said = sentence(versions[version]).replace("|", "\\|")
            lines.append(f"| {framework} | {version} | {said} | {versions[version]['where']} |")
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
