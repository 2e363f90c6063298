"""Run the suite where frameworks have other kernels: ``make conformance-machines``.

The suite runs for each framework under each setting of ``conformance/machines.toml``, in processes with the environment
variables of that setting. What came of it is kept in ``conformance/results/machines.json``, and shown in ``docs/machines.md``.

Arguments choose, frameworks and settings in any order: ``python conformance/machines.py torch default laptop``. What is not
chosen keeps its result.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rows import ROOT, Rows, cells, keep, sentence, suite
from unamp_conformance.evidence import ratio
from unamp_conformance.gaps import fits
from unamp_conformance.reading import load
from wheels import without_wheels

from unamp.adapter import machine

SETTINGS = ROOT / "conformance/machines.toml"
RESULTS = ROOT / "conformance/results/machines.json"
TABLE = ROOT / "docs/machines.md"

FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow")

_HEAD = """# Machines

Other machines have other kernels: other instruction sets, another number of threads, oneDNN or none. What
`make conformance-machines` found: conformance on a CPU under settings that make this processor behave as another one.
*Dies* means that the framework itself ends with that signal, as the setting's list says, whatever the policy.
The tables are generated; the settings are listed in [machines.toml](../conformance/machines.toml).
"""


class BadSettings(ValueError):
    """The file of settings is wrong, or a setting is asked for that there is not."""


@dataclass(frozen=True)
class Death:
    """How a framework itself dies under a setting.

    Attributes:
        signal, reason: of what, and why.
        where: on which processors, as in a known gap; everywhere unless said.
        run: what is run all the same, as arguments of ``unamp conformance``; everything unless said.
    """

    signal: str
    reason: str
    where: Mapping[str, bool] = field(default_factory=dict)
    run: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: its name.
        stands_for: which machines.
        variables: the environment variables for each framework that it says anything to.
        dies: how frameworks die that themselves do.
    """

    name: str
    stands_for: str
    variables: Mapping[str, Mapping[str, str]]
    dies: Mapping[str, Death]

    def death(self, framework: str) -> Death | None:
        """Return how a framework itself dies under it on this processor; None where it is not known to."""
        listed = self.dies.get(framework)
        return listed if listed and fits(listed.where, machine.instruction_sets()) else None


# --- reading --------------------------------------------------------------------------------------------------------------


def read(text: str) -> dict[str, Setting]:
    """Return the settings of a file, by name.

    Raises:
        BadSettings: naming the setting and what is wrong with it.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"no TOML: {error}") from error
    return {name: _setting(name, table) for name, table in tables.items()}


def _setting(name: str, table: Any) -> Setting:
    if name in FRAMEWORKS:
        raise BadSettings(f"{name}: a setting cannot be called like a framework: arguments name both")
    found = _fields(name, table, {"stands_for": str, "variables": dict}, {"dies": dict})
    variables = {_framework(name, f): _variables(f"{name}, {f}", given) for f, given in found["variables"].items()}
    if not variables:
        raise BadSettings(f"{name}: variables names no framework; valid: {', '.join(FRAMEWORKS)}")
    dies = {}
    for framework, given in found.get("dies", {}).items():
        if framework not in variables:
            raise BadSettings(f"{name}: {framework!r} dies, but has no variables; valid: {', '.join(variables)}")
        dies[framework] = _death(f"{name}, dies, {framework}", given)
    return Setting(name, found["stands_for"], variables, dies)


def _death(where: str, given: Any) -> Death:
    found = _fields(where, given, {"signal": str, "reason": str}, {"where": dict, "run": list})
    asked, run = found.get("where", {}), tuple(found.get("run", ()))
    for name, there in asked.items():
        if name not in machine.INSTRUCTION_SETS:
            raise BadSettings(f"{where}: where asks for {name!r}; valid: {', '.join(machine.INSTRUCTION_SETS)}")
        if not isinstance(there, bool):
            raise BadSettings(f"{where}: where, {name}: must be true or false, not {there!r}")
    if wrong := [word for word in run if not isinstance(word, str)]:
        raise BadSettings(f"{where}: run must be texts, not {wrong[0]!r}")
    return Death(found["signal"], found["reason"], asked, run)


def _framework(setting: str, name: str) -> str:
    if name not in FRAMEWORKS:
        raise BadSettings(f"{setting}: unknown framework {name!r}; valid: {', '.join(FRAMEWORKS)}")
    return name


def _variables(where: str, given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise BadSettings(f"{where}: must be a table of variables, not {given!r}")
    for variable, value in given.items():
        if not isinstance(value, str):
            raise BadSettings(f"{where}, {variable}: must be text, not {value!r}")
        if not machine.variables({variable: value}):
            raise BadSettings(f"{where}: {variable} is not recorded with a run; see unamp.adapter.machine.variables")
    return given


def _fields(where: str, table: Any, needed: Mapping[str, type], possible: Mapping[str, type] | None = None) -> dict[str, Any]:
    valid = {**needed, **(possible or {})}
    if not isinstance(table, dict):
        raise BadSettings(f"{where}: must be a table with {', '.join(valid)}")
    if unknown := [key for key in table if key not in valid]:
        raise BadSettings(f"{where}: unknown key {unknown[0]!r}; valid: {', '.join(valid)}")
    if missing := [key for key in needed if key not in table]:
        raise BadSettings(f"{where}: needs {missing[0]!r}")
    for key, value in table.items():
        if not isinstance(value, valid[key]) or value == "":
            kind = "text" if valid[key] is str else "a table" if valid[key] is dict else "a list"
            raise BadSettings(f"{where}: {key} must be {kind}, not {value!r}")
    return table


def chosen(arguments: Sequence[str], settings: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """Return the frameworks and settings that the arguments name; all where they name none.

    Raises:
        BadSettings: for what is neither, and for a framework to which none of the settings says anything.
    """
    if unknown := [name for name in arguments if name not in FRAMEWORKS and name not in settings]:
        valid = f"frameworks: {', '.join(FRAMEWORKS)}; settings: {', '.join(settings)}"
        raise BadSettings(f"unknown setting or framework {unknown[0]!r}; {valid}")
    frameworks = [name for name in FRAMEWORKS if name in arguments] or FRAMEWORKS
    named = [setting for setting in settings.values() if setting.name in arguments] or list(settings.values())
    found = [(framework, setting) for framework in frameworks for setting in named if framework in setting.variables]
    if not found:
        raise BadSettings(f"{', '.join(s.name for s in named)} says nothing to {', '.join(frameworks)}; see {SETTINGS.name}")
    yield from found


# --- running --------------------------------------------------------------------------------------------------------------


def examined(framework: str, setting: Setting, *selection: str) -> Rows:
    """Return what came of one framework under one setting. Whatever the framework does, there is a row.

    Args:
        framework: its name.
        setting: the setting, which has variables for it.
        selection: arguments of ``unamp conformance`` that narrow what is run.
    """
    variables, listed = setting.variables[framework], setting.death(framework)
    selection = (*selection, *(listed.run if listed else ()))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "results"
        row, said = suite(sys.executable, framework, *selection, output=output, variables=variables)
        largest = _largest(output / "results.json") if said else None
    facts = {name: fact for name, fact in said.get("facts", {}).items() if name not in machine.INSTRUCTION_SETS}
    return {
        **_judged(row, said, listed),
        "version": said.get("version", "unknown"),
        "variables": dict(variables),
        "computes with": facts,
        "largest error": largest,
        "seconds": said.get("seconds", 0.0),
        "where": where(),
    }


def where() -> str:
    """Return the machine that this runs on."""
    sets = " ".join(name for name, there in machine.instruction_sets().items() if there)
    return f"{machine.processor()}, {platform.system()} {platform.machine()} ({sets or 'instruction sets not told'})"


def _judged(row: Rows, said: Rows, listed: Death | None) -> Rows:
    """Return the row, with the signal that the framework died of, if any, and whether it is listed."""
    messages = [said.get("ended", ""), *(u["message"] for u in said.get("unexpected", ()) if u["status"] == "crashed")]
    signals = sorted({found for message in messages for found in re.findall(r"signal (SIG[A-Z0-9]+)", message)})
    if listed and signals == [listed.signal] and all(u["status"] == "crashed" for u in said["unexpected"]):
        run = f"; run: {' '.join(listed.run)}" if listed.run else ""
        return {**row, "result": "dies", "message": f"{listed.signal}: {listed.reason}{run}", "wrong": []}
    if listed and row["result"] == "conforms":
        return {**row, "message": f"although listed as dying of {listed.signal}: {listed.reason}"}
    if signals:
        return {**row, "message": "; ".join(filter(None, (f"dies of {', '.join(signals)}", row["message"])))}
    return row


def _largest(results: Path) -> float | None:
    """Return the largest error of all that passed, as a multiple of its bound."""
    found = [multiple for run in load(results).runs for r in run.results if r.status == "passed" and (multiple := ratio(r))]
    return round(max(found), 2) if found else None


# --- the page -------------------------------------------------------------------------------------------------------------


def table(known: Rows) -> str:
    """Return the page."""
    settings = read(SETTINGS.read_text("utf-8"))
    lines = [_HEAD, "## Settings", "", cells("setting", "stands for", "framework", "variables"), cells(*["---"] * 4)]
    for setting in settings.values():
        for number, (framework, variables) in enumerate(setting.variables.items()):
            of = (setting.name, setting.stands_for) if not number else ("", "")
            lines.append(cells(*of, framework, " ".join(f"`{name}={value}`" for name, value in variables.items()) or "none"))
    heads = ("framework", "setting", "result", "passed", "gaps", "failed", "largest error", "seconds", "computes with", "on")
    lines += ["", "## Results", "", cells(*heads), cells(*["---"] * len(heads))]
    places: list[str] = []
    for framework in FRAMEWORKS:
        for name in settings:
            if found := known.get(framework, {}).get(name):
                places += [found["where"]] * (found["where"] not in places)
                lines.append(_line(framework, name, found, places.index(found["where"]) + 1))
    lines += [
        "",
        "*Largest error*: of all errors of networks that passed, the largest, as a part of its bound.",
        "*Seconds*: by the clock, on a machine with other work.",
        "What is not run where a framework dies is not counted as anything.",
    ]
    lines += ["", "The machines:", "", *(f"{number}. {place}" for number, place in enumerate(places, 1))]
    return "\n".join(lines) + "\n"


def _line(framework: str, setting: str, found: Rows, place: int) -> str:
    counts = found.get("checks", {})
    failed = sum(number for status, number in counts.items() if status not in ("passed", "gap", "not run"))
    what = sentence({**found, "checks": {status: n for status, n in counts.items() if status == "not run"}})
    largest = "" if found["largest error"] is None else f"{found['largest error']:.2f}"
    uses = ", ".join(f"{name.replace('_', ' ')}: {machine.said(fact)}" for name, fact in found["computes with"].items())
    numbers = (counts.get("passed", 0), counts.get("gap", 0), failed)
    return cells(f"{framework} {found['version']}", setting, what, *numbers, largest, f"{found['seconds']:.0f}", uses, place)


def main(arguments: Sequence[str]) -> int:
    """Run what was chosen, one at a time, and write the table after each."""
    try:
        work = list(chosen(arguments, read(SETTINGS.read_text("utf-8"))))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return 2
    failed = False
    for framework, setting in work:
        print(f"{framework} under {setting.name}: ", end="", flush=True)
        if find_spec(framework) is None:
            print("left out: it is not installed")
            failed = failed or framework not in without_wheels()
            continue
        found = examined(framework, setting)
        print(sentence(found))
        failed = failed or found["result"] not in ("conforms", "dies")
        keep(RESULTS, TABLE, (framework, setting.name), found, table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
