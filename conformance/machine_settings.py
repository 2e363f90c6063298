"""Read ``conformance/machines.toml``: settings of this processor, and emulated processors.

A setting makes this processor behave as another one. The conformance suite and the benchmarks run
under settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unamp_conformance.gaps import fits

from unamp.adapter import machine

__all__ = [
    "ARCHITECTURES",
    "DEVICES",
    "FRAMEWORKS",
    "SETTINGS",
    "BadSettings",
    "Death",
    "Emulated",
    "Setting",
    "chosen",
    "read",
]

SETTINGS = Path(__file__).with_name("machines.toml")

FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "jax")

ARCHITECTURES = ("x86_64", "aarch64")


DEVICES = ("cpu", "gpu")


class BadSettings(ValueError):
    """The file of settings is wrong, or does not have the setting that was named."""


@dataclass(frozen=True)
class Death:
    """The way in which a framework itself dies under a setting.

    Attributes:
        signal, reason: the signal, and the reason.
        where: the processors, as in a known gap; every processor where not given.
        run: the arguments of ``unamp conformance`` for the checks that run all the same; all checks
            where not given.
    """

    signal: str
    reason: str
    where: Mapping[str, bool] = field(default_factory=dict)
    run: tuple[str, ...] = ()


@dataclass(frozen=True)
class Emulated:
    """An emulated processor, and the sizes of the samples that run on it, for each framework.

    Attributes:
        architecture: one of `ARCHITECTURES`.
        model: the emulator's name for the processor.
        has: its instruction sets, as Linux spells them.
        checks: the number of items of conformance to draw; see ``unamp conformance --sample``.
        tests: the number of the framework's tests to draw.
    """

    architecture: str
    model: str
    has: tuple[str, ...]
    checks: Mapping[str, int]
    tests: Mapping[str, int]

    def instruction_sets(self) -> dict[str, bool]:
        """Return, for each known instruction set, whether the processor has it."""
        return {name: name in self.has for name in machine.INSTRUCTION_SETS}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: the setting's name.
        stands_for: the machines that it imitates.
        variables: the environment variables for each framework that it applies to.
        dies: the deaths of frameworks under it.
        emulated: the emulated processor; None for the machine's own.
        device: ``"cpu"``, or ``"gpu"``, which a machine may not have.
    """

    name: str
    stands_for: str
    variables: Mapping[str, Mapping[str, str]]
    dies: Mapping[str, Death]
    emulated: Emulated | None = None
    device: str = "cpu"

    def death(self, framework: str) -> Death | None:
        """Return the known death of a framework under this setting on this processor, or None."""
        listed = self.dies.get(framework)
        sets = self.emulated.instruction_sets() if self.emulated else machine.instruction_sets()
        return listed if listed and fits(listed.where, sets) else None


def read(text: str) -> dict[str, Setting]:
    """Return the settings of a file, by name.

    Raises:
        BadSettings: the message names the setting and its fault.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"no TOML: {error}") from error
    return {name: _setting(name, table) for name, table in tables.items()}


def _setting(name: str, table: Any) -> Setting:
    if name in FRAMEWORKS:
        raise BadSettings(
            f"{name}: a setting cannot be called like a framework: arguments name both"
        )
    found = _fields(
        name,
        table,
        {"stands_for": str, "variables": dict},
        {"dies": dict, "emulated": dict, "device": str},
    )
    variables = {
        _framework(name, f): _variables(f"{name}, {f}", given)
        for f, given in found["variables"].items()
    }
    if not variables:
        raise BadSettings(f"{name}: variables names no framework; valid: {', '.join(FRAMEWORKS)}")
    dies = {}
    for framework, given in found.get("dies", {}).items():
        if framework not in variables:
            raise BadSettings(
                f"{name}: {framework!r} dies, but has no variables; valid: {', '.join(variables)}"
            )
        dies[framework] = _death(f"{name}, dies, {framework}", given)
    emulated = (
        _emulated(f"{name}, emulated", found["emulated"], variables)
        if "emulated" in found
        else None
    )
    if (device := found.get("device", "cpu")) not in DEVICES:
        raise BadSettings(f"{name}: unknown device {device!r}; valid: {', '.join(DEVICES)}")
    return Setting(name, found["stands_for"], variables, dies, emulated, device)


def _emulated(where: str, given: Any, frameworks: Mapping[str, Any]) -> Emulated:
    found = _fields(
        where, given, {"architecture": str, "model": str, "has": str, "checks": dict, "tests": dict}
    )
    if found["architecture"] not in ARCHITECTURES:
        raise BadSettings(
            f"{where}: unknown architecture {found['architecture']!r}; valid: "
            f"{', '.join(ARCHITECTURES)}"
        )
    has = tuple(found["has"].split())
    if wrong := [name for name in has if name not in machine.INSTRUCTION_SETS]:
        raise BadSettings(
            f"{where}: has {wrong[0]!r}; valid: {', '.join(machine.INSTRUCTION_SETS)}"
        )
    for key in ("checks", "tests"):
        if set(found[key]) != set(frameworks):
            raise BadSettings(
                f"{where}, {key}: must be of the frameworks that it has variables for: "
                f"{', '.join(frameworks)}"
            )
        if wrong := [
            number for number in found[key].values() if not isinstance(number, int) or number < 1
        ]:
            raise BadSettings(f"{where}, {key}: must be numbers of 1 and more, not {wrong[0]!r}")
    return Emulated(found["architecture"], found["model"], has, found["checks"], found["tests"])


def _death(where: str, given: Any) -> Death:
    found = _fields(where, given, {"signal": str, "reason": str}, {"where": dict, "run": list})
    asked, run = found.get("where", {}), tuple(found.get("run", ()))
    for name, there in asked.items():
        if name not in machine.INSTRUCTION_SETS:
            raise BadSettings(
                f"{where}: where asks for {name!r}; valid: {', '.join(machine.INSTRUCTION_SETS)}"
            )
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
            raise BadSettings(
                f"{where}: {variable} is not recorded with a run; "
                "see unamp.adapter.machine.variables"
            )
    return given


def _fields(
    where: str, table: Any, needed: Mapping[str, type], possible: Mapping[str, type] | None = None
) -> dict[str, Any]:
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


def chosen(
    arguments: Sequence[str], settings: Mapping[str, Setting]
) -> Iterator[tuple[str, Setting]]:
    """Yield the frameworks and settings that the arguments name; all where they name none.

    Raises:
        BadSettings: for a word that is neither, and for a framework to which none of the settings
            applies.
    """
    if unknown := [name for name in arguments if name not in FRAMEWORKS and name not in settings]:
        valid = f"frameworks: {', '.join(FRAMEWORKS)}; settings: {', '.join(settings)}"
        raise BadSettings(f"unknown setting or framework {unknown[0]!r}; {valid}")
    frameworks = [name for name in FRAMEWORKS if name in arguments] or FRAMEWORKS
    named = [setting for setting in settings.values() if setting.name in arguments] or list(
        settings.values()
    )
    found = [
        (framework, setting)
        for framework in frameworks
        for setting in named
        if framework in setting.variables
    ]
    if not found:
        raise BadSettings(
            f"{', '.join(s.name for s in named)} says nothing to {', '.join(frameworks)}; "
            f"see {SETTINGS.name}"
        )
    yield from found
