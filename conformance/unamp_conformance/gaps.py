"""Known gaps: the checks that are expected to fail, with the reason, in one file per framework.

A gap must cover exactly the checks that fail: it is an error where one of them passes, or where the
gap matches no check at all. Gaps of ``agreement`` are about functions of a framework that differ
from the canonical ones: they cover its comparisons with the frameworks that have no such gap.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unamp.adapter import Fact
from unamp.adapter.machine import INSTRUCTION_SETS
from unamp.adapter.registry import installed
from unamp_conformance.results import Result

__all__ = [
    "BadGaps",
    "KnownGap",
    "apply",
    "fits",
    "gaps_of",
    "in_vain",
    "mark",
    "parse",
    "that_hold",
]

_VERSION = re.compile(r"\d+(\.\d+)*")
_CONDITION = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")


class BadGaps(ValueError):
    """A file of known gaps is wrong."""


@dataclass(frozen=True)
class KnownGap:
    """One gap.

    Attributes:
        check: the kind of check.
        subjects: operations, networks or behaviours; ``*`` is a wildcard.
        policies, devices: likewise.
        reason, link: why, and where that is written down.
        versions: the framework's versions that have the gap, e.g. ``">=2.6,<3"``.
        where: the facts of the machine, and of the framework on it, that the gap needs, by the
            names of `unamp.adapter.machine.facts`, e.g. ``{onednn_bfloat16 = false}``. All must
            hold: a fact is equal to the value, or to one of a list, or a number is in a range such
            as ``">=2"``.
        ways: the ways that have the gap, where the check is ``ways``.
    """

    check: str
    subjects: tuple[str, ...]
    reason: str
    link: str
    versions: str
    policies: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ("*",)
    where: Mapping[str, Any] = field(default_factory=dict)
    ways: tuple[str, ...] = ("*",)

    def covers(self, result: Result) -> bool:
        """Return whether the gap covers a result."""
        return result.check == self.check and all(
            any(fnmatchcase(value, pattern) for pattern in patterns)
            for value, patterns in (
                (result.subject, self.subjects),
                (result.policy, self.policies),
                (result.device, self.devices),
                (result.way, self.ways),
            )
        )

    def is_of(self, devices: Iterable[str]) -> bool:
        """Return whether one of some devices can have the gap."""
        return any(fnmatchcase(device, pattern) for device in devices for pattern in self.devices)

    def applies_to(self, version: str, facts: Mapping[str, Fact]) -> bool:
        """Return whether a version has the gap, given these facts.

        A condition on a fact that is not given does not hold.
        """
        return fits(self.where, facts) and _within(version, self.versions)


def gaps_of(framework: str) -> tuple[KnownGap, ...]:
    """Return a framework's known gaps, of ``gaps.toml`` beside its adapter; none without a file.

    Raises:
        BadGaps: where the file is wrong.
    """
    file = _beside_the_adapter(framework)
    return (
        parse(file.read_text("utf-8"), f"{file.parent.name}/{file.name}")
        if file is not None and file.is_file()
        else ()
    )


def _beside_the_adapter(framework: str) -> Path | None:
    point = installed().get(framework)
    # The adapter itself would import its framework, which not every caller may do.
    spec = find_spec(point.module.partition(".")[0]) if point else None
    return Path(spec.origin).parent / "gaps.toml" if spec is not None and spec.origin else None


@cache
def parse(text: str, name: str) -> tuple[KnownGap, ...]:
    """Return the gaps in a file's text.

    Raises:
        BadGaps: for a bad entry; the message names the file and the entry.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadGaps(f"{name}: {error}") from error
    defaults = data.get("defaults", {})
    if not isinstance(defaults, dict):
        raise BadGaps(f"{name}: defaults must be a table, not {defaults!r}")
    return tuple(
        _gap(entry, defaults, f"{name}: gap {n}") for n, entry in enumerate(data.get("gap", []), 1)
    )


def fits(where: Mapping[str, Any], facts: Mapping[str, Fact]) -> bool:
    """Return whether the facts meet all conditions of a gap."""
    return all(name in facts and _is(facts[name], wanted) for name, wanted in where.items())


def that_hold(framework: str, version: str, facts: Mapping[str, Fact]) -> list[KnownGap]:
    """Return the known gaps of a framework that its version has on this machine."""
    return [gap for gap in gaps_of(framework) if gap.applies_to(version, facts)]


def in_vain(gaps: Iterable[KnownGap], version: str, facts: Mapping[str, Fact]) -> list[str]:
    """Return a sentence for each gap of a version that asks for an unknown fact."""
    valid = {*facts, *INSTRUCTION_SETS}
    asked = [
        (gap, name)
        for gap in gaps
        if _within(version, gap.versions)
        for name in gap.where
        if name not in valid
    ]
    known = ", ".join(sorted(valid))
    return [
        f"the known gap {g.check} {' '.join(g.subjects)} asks for {name!r}; known are {known}"
        for g, name in asked
    ]


def apply(
    gaps: Sequence[KnownGap],
    results: Iterable[Result],
    version: str,
    facts: Mapping[str, Fact],
    *,
    whole: bool,
    others: Callable[[], Iterable[Result]] = tuple,
) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """Mark results by the known gaps.

    Args:
        gaps: the framework's gaps.
        results: the results.
        version: the framework's version.
        facts: the facts of the machine and of the framework on it.
        whole: whether nothing was deselected; only then is a gap that matches nothing reported.
        others: returns results for the checks of all full runs; a gap may cover one of these.

    Returns:
        The results, failed ones of a gap as ``gap`` and passed ones as ``fixed``, and a sentence
        for each useless gap.
    """
    current = [gap for gap in gaps if gap.applies_to(version, facts)]
    used: set[int] = set()
    marked = []
    for result in results:
        index = next((n for n, gap in enumerate(current) if gap.covers(result)), None)
        if index is not None:
            used.add(index)
            marked.append(mark(result, current[index]))
        else:
            marked.append(result)
    ran = {result.device for result in marked}
    unused = (
        [gap for n, gap in enumerate(current) if n not in used and gap.is_of(ran)] if whole else []
    )
    for elsewhere in others() if unused else ():
        unused = [gap for gap in unused if not gap.covers(elsewhere)]
        if not unused:
            break
    said = [f"the known gap {g.check} {' '.join(g.subjects)} matches no check" for g in unused]
    return tuple(marked), (*in_vain(gaps, version, facts), *said)


def mark(result: Result, gap: KnownGap) -> Result:
    """Return a result as marked by a gap that covers it.

    A result that failed is expected now, and one that passed is an error.
    """
    if result.status in ("lost", "failed", "crashed", "hung"):
        return replace(result, status="gap", reason=f"{gap.reason} {gap.link}".strip())
    if result.status == "passed":
        return replace(
            result,
            status="fixed",
            message="passes; take it out of the known gaps",
            reason=gap.reason,
        )
    return result


def _gap(entry: object, defaults: Mapping[str, object], where: str) -> KnownGap:
    if not isinstance(entry, dict):
        raise BadGaps(f"{where}: must be a table")
    entry = {**defaults, **entry}
    known = {f.name: f for f in fields(KnownGap)}
    if wrong := sorted(set(entry) - set(known)):
        raise BadGaps(f"{where}: unknown key {wrong[0]!r}; valid: {', '.join(known)}")
    if missing := [
        n for n in ("check", "subjects", "reason", "link", "versions") if not entry.get(n)
    ]:
        raise BadGaps(f"{where}: needs {missing[0]!r}")
    _check_kinds(entry, where)
    if not _CONDITION.match(entry["versions"]):
        raise BadGaps(f"{where}: versions {entry['versions']!r} is no range such as '>=2.6,<3'")
    asked = entry.get("where", {})
    if not isinstance(asked, dict):
        raise BadGaps(f"{where}: where must be a table such as {{onednn = false}}, not {asked!r}")
    if wrong := [
        n
        for n, wanted in asked.items()
        if not all(isinstance(w, bool | int | str) for w in _listed(wanted))
    ]:
        raise BadGaps(
            f"{where}: where, {wrong[0]}: {asked[wrong[0]]!r} is no boolean, number, "
            "text or list of them"
        )
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in entry.items()}
    return KnownGap(**values)


def _check_kinds(entry: Mapping[str, object], where: str) -> None:
    """Raise BadGaps where a value is not text, or not a list of texts.

    Without a list, the text "fft_*" would be five patterns, the last of them ``*``.
    """
    for name, value in entry.items():
        if name in ("subjects", "policies", "devices", "ways"):
            if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
                raise BadGaps(
                    f"{where}: {name} must be a list of texts such as ['fft_*'], not {value!r}"
                )
        elif name != "where" and not isinstance(value, str):
            raise BadGaps(f"{where}: {name} must be text, not {value!r}")


def _is(fact: Fact, wanted: Any) -> bool:
    """Return whether a fact meets one condition of a gap."""
    return any(
        _within(str(fact), one)
        if _is_range(one) and type(fact) is int
        else type(fact) is type(one) and fact == one
        for one in _listed(wanted)
    )


def _is_range(wanted: Any) -> bool:
    return isinstance(wanted, str) and _CONDITION.match(wanted) is not None


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _within(version: str, bounds: str) -> bool:
    found = _VERSION.match(version)
    given = _numbers(found.group() if found else "0")
    return all(_holds(given, sign, _numbers(bound)) for sign, bound in _CONDITION.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _holds(given: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    size = max(len(given), len(bound))
    a, b = (v + (0,) * (size - len(v)) for v in (given, bound))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}[sign]
