"""Tables of runs: run the suite in a process of its own, and keep and show the rows of results.

A table's rows are in ``conformance/results/NAME.json``: nested objects, by the names of a row. Its
page is ``docs/NAME.md``, which is written anew with every row.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]

_RUNNING = 3600  # seconds

Rows = dict[str, Any]


def run(
    interpreter: str | Path,
    *arguments: str,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    timeout: float = _RUNNING,
) -> subprocess.CompletedProcess[str]:
    """Run Python with the checkout's packages and more environment variables."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "adapters", "conformance"))
    more = variables or {}
    environment = {
        **os.environ,
        **more,
        "PYTHONPATH": os.pathsep.join(filter(None, (more.get("PYTHONPATH"), path))),
    }
    command = [str(interpreter), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=cwd,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"not finished within {timeout:.0f} seconds"
        )


def suite(
    interpreter: str | Path,
    framework: str,
    *selection: str,
    output: Path,
    variables: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> tuple[Rows, Rows]:
    """Run the suite for one framework on a device.

    Returns:
        The results, for a row, and the suite's own data about the run; the latter is empty where
        the suite wrote none.
    """
    arguments = (
        "-m",
        "unamp_conformance",
        "--framework",
        framework,
        "--device",
        device,
        "--json",
        "--output",
        str(output),
    )
    done = run(interpreter, *arguments, *selection, cwd=output.parent, variables=variables)
    try:
        (found,) = json.loads(done.stdout)["runs"]
    except (ValueError, KeyError):
        died = (
            f"signal {signal.Signals(-done.returncode).name}"
            if done.returncode < 0
            else last_line(done.stderr)
        )
        return {"result": "conformance fails to run", "message": died}, {}
    wrong = list(dict.fromkeys([*(u["key"] for u in found["unexpected"]), *found["problems"]]))
    ended = "" if found["ended"] == "finished" else found["ended"]
    result = "fails" if wrong or ended else "conforms"
    return {
        "result": result,
        "message": ended,
        "checks": found["checks"],
        "wrong": wrong[:20],
    }, found


def commit() -> str:
    """Return the checkout's commit, with a plus sign if one of its packages was changed since."""
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    changed = git(
        ("git", "status", "--porcelain", "unamp", "adapters", "conformance/unamp_conformance")
    ).stdout
    return git(("git", "rev-parse", "--short=7", "HEAD")).stdout.strip() + (
        "+" if changed.strip() else ""
    )


def drawn_tests(
    interpreter: str | Path,
    framework: str,
    number: int,
    seed: int,
    *,
    output: Path,
    variables: Mapping[str, str],
) -> Rows:
    """Draw some of a framework's tests and run them.

    Returns:
        The numbers of tests that passed, failed, were skipped, and exist; and the failed tests.
    """
    drawn = ("--draw", str(number), "--seed", str(seed))
    options = ("-q", "-p", "no:cacheprovider", f"--junitxml={output}", *drawn)
    done = run(
        interpreter, "-m", "pytest", f"tests/{framework}", *options, cwd=ROOT, variables=variables
    )
    if not output.exists():
        return {
            "passed": 0,
            "failed": 1,
            "skipped": 0,
            "of": 0,
            "wrong": [f"tests do not run: {last_line(done.stdout)}"],
        }
    cases = list(ElementTree.parse(output).getroot().iter("testcase"))
    failed = [case for case in cases if {part.tag for part in case} & {"failure", "error"}]
    wrong = [f"{case.get('classname')}.{case.get('name')}" for case in failed]
    skipped = sum(case.find("skipped") is not None for case in cases)
    left_out = re.search(r"(\d+) deselected", last_line(done.stdout))
    counted = {
        "passed": len(cases) - len(wrong) - skipped,
        "failed": len(wrong),
        "skipped": skipped,
    }
    return {
        **counted,
        "of": len(cases) + (int(left_out[1]) if left_out else 0),
        "wrong": wrong[:20],
    }


def last_line(text: str) -> str:
    """Return the last line of a program's output."""
    return (text.strip().splitlines() or [""])[-1].strip()


def numbers(version: str) -> list[int]:
    """Return a version as numbers, for sorting."""
    return [int(number) for number in re.findall(r"\d+", version)]


def sentence(found: Mapping[str, Any]) -> str:
    """Return the outcome of a row, as text."""
    counts = ", ".join(f"{number} {status}" for status, number in found.get("checks", {}).items())
    first = ", ".join(found.get("wrong", ())[:3])
    said = "; ".join(filter(None, (found["message"], counts, first and f"first: {first}")))
    return f"{found['result']}: {said}" if said else found["result"]


def cells(*texts: object) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(str(text).replace("|", "\\|") for text in texts) + " |"


def keep(
    results: Path, page: Path, names: Sequence[str], found: Rows, table: Callable[[Rows], str]
) -> None:
    """Write the results of one row into the file of rows, and the page.

    Another run may have changed the file meanwhile: it is read again first.

    Args:
        results: the file of rows.
        page: the table's page.
        names: the names of the row.
        found: the row.
        table: returns the page's text from all rows.
    """
    known = json.loads(results.read_text("utf-8")) if results.exists() else {}
    place = known
    for name in names[:-1]:
        place = place.setdefault(name, {})
    place[names[-1]] = found
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    page.write_text(table(known), "utf-8")
