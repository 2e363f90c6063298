"""Run the suite on other kernels of the frameworks: ``make conformance-machines``.

The suite runs for each framework under each setting of ``conformance/machines.toml``, in processes
with the environment variables of that setting. The results are kept in
``conformance/results/machines.json``, and shown in ``docs/machines.md``. On an emulated processor,
which is several times slower, a sample of the suite and a sample of the tests run.

Arguments name frameworks and settings, in any order: ``python conformance/machines.py torch default
laptop``. All others keep their results. ``--seed 3`` draws another sample. With ``--short`` the
sample is the smallest that has every check, network, level and way; two frameworks run at a time,
and no result is kept. With ``--where-possible`` a missing emulator is no failure.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from emulation import NotHere, environment
from machine_settings import (
    FRAMEWORKS,
    SETTINGS,
    BadSettings,
    Death,
    Emulated,
    Setting,
    chosen,
    read,
)
from rows import ROOT, Rows, cells, commit, drawn_tests, keep, sentence, suite
from unamp_conformance.machine import gpus
from unamp_conformance.reading import load
from unamp_conformance.report.evidence import ratio
from unamp_conformance.results import UNEXPECTED
from wheels import without_wheels

from unamp.adapter import machine

RESULTS = ROOT / "conformance/results/machines.json"
TABLE = ROOT / "docs/machines.md"

_PATIENCE = "1800"  # seconds for one check: an emulated compiler is slow

_HEAD = """# Machines

Other machines have other kernels: other instruction sets, another number of threads, or no oneDNN.
`make conformance-machines` measures three kinds of them:

- a CPU, with settings that make this processor behave like another one: the whole suite;
- a GPU;
- emulated processors: a sample of the suite and of the tests, with every check, network, level \
and way of the framework.

*Dies* means that the framework itself ends with that signal, whatever the policy; the setting's \
list says so.
The tables are generated; the settings are listed in [machines.toml](../conformance/machines.toml).
"""


# --- running --------------------------------------------------------------------------------------


def examined(framework: str, setting: Setting, *selection: str) -> Rows:
    """Return the result of one framework under one setting, even where the framework dies.

    Args:
        framework: the framework's name.
        setting: the setting, which has variables for the framework.
        selection: arguments of ``unamp conformance`` that select checks.

    Raises:
        NotHere: where the setting is of a GPU, and the machine has none.
    """
    if setting.device == "gpu" and not gpus():
        raise NotHere("this machine has no GPU")
    variables, listed = setting.variables[framework], setting.death(framework)
    selection = (*selection, *(listed.run if listed else ()))
    interpreter = environment(setting.emulated) if setting.emulated else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "results"
        # PyTorch keeps compiled code by a key without these variables: under another setting it
        # would be wrong, so that each setting gets a folder of its own.
        kept = (
            {} if setting.emulated else {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}
        )
        row, said = suite(
            interpreter,
            framework,
            *selection,
            output=output,
            variables={**kept, **variables},
            device=setting.device,
        )
        largest = _largest(output / "results.json") if said else None
    facts = {
        name: fact
        for name, fact in said.get("facts", {}).items()
        if name not in machine.INSTRUCTION_SETS
    }
    return {
        **_judged(row, said, listed),
        "version": said.get("version", "unknown"),
        "variables": dict(variables),
        "sample": facts.pop("drawn", "all"),
        "computes with": facts,
        "largest error": largest,
        "seconds": said.get("seconds", 0.0),
        "where": where(setting.emulated, setting.device),
        "commit": commit(),
    }


def sampled(framework: str, setting: Setting, seed: int, *, short: bool = False) -> Rows:
    """Return the result of a sample of the suite, and of the framework's tests, on an emulator.

    Args:
        framework: the framework's name.
        setting: the setting, which names the processor.
        seed: the seed of the draws.
        short: draw the smallest sample of the suite, and no tests.

    Raises:
        NotHere: where the processor cannot be emulated.
    """
    emulated = setting.emulated
    assert emulated is not None
    number = 1 if short else emulated.checks[framework]
    options = (
        "--sample",
        str(number),
        "--seed",
        str(seed),
        "--timeout",
        _PATIENCE,
        *(("--jobs", "1") if short else ()),
    )
    row = examined(framework, setting, *options)
    if short:
        return row
    with tempfile.TemporaryDirectory() as folder:
        found = drawn_tests(
            environment(emulated), framework, emulated.tests[framework], seed,
            output=Path(folder) / "tests.xml", variables=setting.variables[framework],
        )  # fmt: skip
    counted = ", ".join(
        f"{found[kind]} {kind}" for kind in ("passed", "failed", "skipped") if found[kind]
    )
    ran = found["passed"] + found["failed"] + found["skipped"]
    row["sample"] += f"; {ran:,} of {found['of']:,} tests: {counted}"
    if found["failed"]:
        row = {**row, "result": "fails", "wrong": [*row.get("wrong", ()), *found["wrong"]]}
    return row


def where(emulated: Emulated | None = None, device: str = "cpu") -> str:
    """Return a description of this machine, or of the emulated one.

    It names the GPUs of this machine, where `device` is ``"gpu"``.
    """
    there = emulated.instruction_sets() if emulated else machine.instruction_sets()
    name = f"{emulated.model}, emulated by qemu" if emulated else machine.processor()
    sets = " ".join(name for name, has in there.items() if has)
    kind = emulated.architecture if emulated else platform.machine()
    beside = f"{gpus()}, beside " if device == "gpu" else ""
    return f"{beside}{name}, {platform.system()} {kind} ({sets or 'instruction sets not told'})"


def _judged(row: Rows, said: Rows, listed: Death | None) -> Rows:
    """Return the row, with the signal that the framework died of, and whether it is listed."""
    messages = [
        said.get("ended", ""),
        *(u["message"] for u in said.get("unexpected", ()) if u["status"] == "crashed"),
    ]
    signals = sorted(
        {found for message in messages for found in re.findall(r"signal (SIG[A-Z0-9]+)", message)}
    )
    if (
        listed
        and signals == [listed.signal]
        and all(u["status"] == "crashed" for u in said["unexpected"])
    ):
        run = f"; run: {' '.join(listed.run)}" if listed.run else ""
        return {
            **row,
            "result": "dies",
            "message": f"{listed.signal}: {listed.reason}{run}",
            "wrong": [],
        }
    if listed and row["result"] == "conforms":
        return {**row, "message": f"although listed as dying of {listed.signal}: {listed.reason}"}
    if signals:
        return {
            **row,
            "message": "; ".join(filter(None, (f"dies of {', '.join(signals)}", row["message"]))),
        }
    return row


def _largest(results: Path) -> float | None:
    """Return the largest error of all checks that passed, as a multiple of its bound."""
    found = [
        multiple
        for run in load(results).runs
        for r in run.results
        if r.status == "passed" and (multiple := ratio(r))
    ]
    return round(max(found), 2) if found else None


# --- the page -------------------------------------------------------------------------------------


def table(known: Rows) -> str:
    """Return the text of the page."""
    settings = read(SETTINGS.read_text("utf-8"))
    lines = [
        _HEAD,
        "## Settings",
        "",
        cells("setting", "stands for", "framework", "variables"),
        cells(*["---"] * 4),
    ]
    for setting in settings.values():
        for number, (framework, variables) in enumerate(setting.variables.items()):
            kind = f"; emulated: {setting.emulated.model}" if setting.emulated else ""
            of = (setting.name, setting.stands_for + kind) if not number else ("", "")
            lines.append(
                cells(
                    *of,
                    framework,
                    " ".join(f"`{name}={value}`" for name, value in variables.items()) or "none",
                )
            )
    heads = (
        "framework",
        "setting",
        "result",
        "passed",
        "gaps",
        "failed",
        "sample",
        "largest error",
        "seconds",
        "computes with",
        "on",
        "at commit",
    )
    lines += ["", "## Results", "", cells(*heads), cells(*["---"] * len(heads))]
    places: list[str] = []
    for framework in FRAMEWORKS:
        for name in settings:
            if found := known.get(framework, {}).get(name):
                places += [found["where"]] * (found["where"] not in places)
                lines.append(_line(framework, name, found, places.index(found["where"]) + 1))
    lines += [
        "",
        "*Largest error*: the largest error of all networks that passed, as a part of its bound.",
        "*Seconds*: by the clock, on a machine with other work.",
        "If a framework dies, its checks that did not run are not counted.",
    ]
    lines += [
        "",
        "The machines:",
        "",
        *(f"{number}. {place}" for number, place in enumerate(places, 1)),
    ]
    return "\n".join(lines) + "\n"


def _line(framework: str, setting: str, found: Rows, place: int) -> str:
    counts = found.get("checks", {})
    failed = sum(number for status, number in counts.items() if status in UNEXPECTED)
    what = sentence(
        {**found, "checks": {status: n for status, n in counts.items() if status == "not run"}}
    )
    largest = "" if found["largest error"] is None else f"{found['largest error']:.2f}"
    uses = ", ".join(
        f"{name.replace('_', ' ')}: {machine.said(fact)}"
        for name, fact in found["computes with"].items()
    )
    numbers = (counts.get("passed", 0), counts.get("gap", 0), failed)
    last = (f"{found['seconds']:.0f}", uses, place, found["commit"])
    return cells(
        f"{framework} {found['version']}", setting, what, *numbers, found["sample"], largest, *last
    )


def main(arguments: Sequence[str]) -> int:
    """Run the chosen rows, one at a time, and write the table after each."""
    parser = argparse.ArgumentParser(prog="machines.py")
    parser.add_argument("names", nargs="*", help="frameworks and settings")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, on emulated processors")
    parser.add_argument(
        "--short", action="store_true", help="the smallest sample, of emulated processors only"
    )
    parser.add_argument(
        "--where-possible",
        action="store_true",
        help="with --short: say so, and end with 0, where none can be emulated",
    )
    asked = parser.parse_args(arguments)
    try:
        work = list(chosen(asked.names, read(SETTINGS.read_text("utf-8"))))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return 2
    if asked.short:
        emulated = [(framework, setting) for framework, setting in work if setting.emulated]
        return _in_short(emulated, asked.seed, absent=0 if asked.where_possible else 1)
    failed = False
    for framework, setting in work:
        print(f"{framework} under {setting.name}: ", end="", flush=True)
        if find_spec(framework) is None:
            print("left out: it is not installed")
            failed = failed or framework not in without_wheels()
            continue
        try:
            found = (
                sampled(framework, setting, asked.seed)
                if setting.emulated
                else examined(framework, setting, "--thorough")
            )
        except NotHere as missing:
            print(f"not run: {missing}")
            failed = True
            continue
        print(sentence(found))
        failed = failed or found["result"] not in ("conforms", "dies")
        keep(RESULTS, TABLE, (framework, setting.name), found, table)
    return int(failed)


def _in_short(work: Sequence[tuple[str, Setting]], seed: int, *, absent: int) -> int:
    """Run the smallest samples, two at a time; return 1 where one fails.

    Return `absent` where they cannot run.
    """

    def run(framework: str, setting: Setting) -> bool:
        found = sampled(framework, setting, seed, short=True)
        print(f"{framework} under {setting.name}, {found['sample']}: {sentence(found)}", flush=True)
        return bool(found["result"] in ("conforms", "dies"))

    try:
        for _, setting in work:  # made before two threads ask for one
            assert setting.emulated is not None
            environment(setting.emulated)
    except NotHere as missing:
        print(f"not run: {missing}")
        return absent
    with ThreadPoolExecutor(2) as pool:
        return int(not all(list(pool.map(lambda pair: run(*pair), work))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
