"""One operation under one policy: the check that its numbers agree with the policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from unamp.dtypes import ELIGIBLE
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.presets import PRESETS, preset
from unamp_conformance.check.probes import FEEDS, Finding, Probe
from unamp_conformance.subjects import Subject

__all__ = ["Unsaid", "check_operation", "expected_precision"]

#: The relative difference allowed between float32 numbers of two compilations of a program: sixteen
#: last places. Inputs that are rounded to a low dtype change by more than a hundred times that.
_LAST_BITS = 16 * 2.0**-23

#: The look at float32 inputs that change in place.
_AGAIN = "changed float32"

#: The feeds that tell each rule from every other, and those that do so for operations of which a
#: policy casts one input. They are enough where another policy has shown the rule with every feed.
_TELLING = {
    Rule.LOW: (("float32",), ("float32",)),
    Rule.FP32: (("low",), ("low",)),
    Rule.WIDEST: (("low", "mixed"), ("float32", "low")),
    Rule.NARROWEST: (("float32", "mixed"), ("float32", "low")),
    Rule.UNTOUCHED: (("float32", "low"), ("float32", "low")),
}
#: The same for rules that the framework's own lists give, which it carries out by itself: it may
#: refuse mixed inputs.
_TELLING_OF_OWN = {
    **_TELLING,
    Rule.LOW: (("mixed",), ("float32",)),
    Rule.FP32: (("low", "mixed"), ("low",)),
}


class Unsaid(Exception):
    """A policy says nothing about an operation, so there is nothing to check."""


def expected_precision(rule: Rule, feed: str, low: str) -> str | None:
    """Return the precision that a rule means for a feed, or None where the framework decides."""
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32 or feed == "float32":
        return "float32"
    if feed == "low" or rule is Rule.NARROWEST:
        return low
    return "float32" if rule is Rule.WIDEST else None


def check_operation(
    subject: Subject, probe: Probe, policy: Policy, *, full: bool = True
) -> tuple[str, dict[str, Any]]:
    """Probe an operation under a policy.

    Args:
        subject: the framework and device.
        probe: the operation's probe there.
        policy: the policy.
        full: look at every feed, and at later calls in one region; otherwise only at the feeds that
            tell the rule from others.

    Returns:
        A message, empty where nothing is wrong, and the observations.

    Raises:
        Unsaid: where the policy says nothing about the operation.
        Unreadable: where the device is not here, and has no program for the operation without any
            region either.
    """
    rule = subject.rule(policy, probe.case.op)
    if rule is None:
        raise Unsaid("the preset leaves it to the framework")
    if probe.case.layer and probe.case.op not in (*policy.allow, *policy.deny):
        raise Unsaid("a layer that no list names follows the rules of its parts")
    region = lambda: subject.region(policy)  # noqa: E731 - reads better at its uses
    if rule is Rule.BANNED:
        # A framework's own mixed precision raises an error of its own.
        banned = RuntimeError if preset(policy.preset).delegates else BannedOperation
        try:
            probe.look(region)
        except banned:
            return "", {"rule": rule.value}
        return "the policy bans it, but it ran", {"rule": rule.value}

    looks: dict[str, Callable[[], list[Finding]]] = {
        feed: partial(probe.look, region, feed, policy.dtype)
        for feed in (FEEDS if full else _telling(subject, policy, rule, probe))
        if feed == "float32" or probe.castable > (feed == "mixed")
    }
    if full and rule is Rule.LOW:
        looks[_AGAIN] = partial(probe.look_again, region)
    wrong, seen, differing = [], [], []
    for fed, look in looks.items():
        feed = "float32" if fed == _AGAIN else fed
        expected = expected_precision(rule, feed, policy.dtype)
        if expected is None:
            continue
        try:
            findings = look()
        except Exception as error:
            if rule.leaves_agreeing and feed == "low" and not _runs_outside(probe, policy.dtype):
                continue  # the framework has no such kernel, and the rule asks for no cast
            if unreadable := probe.unreadable(expected, feed, policy.dtype):
                raise unreadable from error
            wrong.append(f"{fed} inputs: {type(error).__name__}: {_first_line(error)}")
            differing.append(
                {"of": f"{fed} inputs", "expected": expected, "observed": type(error).__name__}
            )
            continue
        for finding in findings:
            what = f"{fed} inputs, {finding.what}"
            seen.append(f"{what}: {_spoken(finding)}, tag {finding.dtype}")
            if complaint := _complaint(probe, finding, expected, (feed, policy.dtype), rule):
                wrong.append(f"{what}: {complaint}")
                differing.append(
                    {
                        "of": what,
                        "expected": expected,
                        "observed": f"{_spoken(finding)}, tag {finding.dtype}",
                    }
                )
    return "; ".join(wrong), {"rule": rule.value, "seen": seen, "wrong": differing}


def _telling(subject: Subject, policy: Policy, rule: Rule, probe: Probe) -> tuple[str, ...]:
    lists = preset(policy.preset)
    own = lists.delegates or (lists.framework == subject.framework and policy.preset != PRESETS[0])
    feeds = (_TELLING_OF_OWN if own else _TELLING)[rule][probe.castable < 2]
    # Low inputs that are only moved are right in every precision.
    return (*feeds, "float32") if rule is Rule.FP32 and probe.moves else feeds


def _complaint(
    probe: Probe, finding: Finding, expected: str, fed: tuple[str, str], rule: Rule
) -> str:
    if finding.precisions is not None and expected not in finding.precisions:
        return f"computed in {_spoken(finding)}, the policy says {expected}"
    if probe.castable == 0:
        expected = probe.outside.dtype
    tag = "float32" if finding.what.startswith("backward") and fed[0] == "float32" else expected
    follows = rule in (Rule.LOW, Rule.FP32) or not _own_dtype(probe, tag, fed)
    if finding.dtype in ELIGIBLE and finding.dtype != tag and follows:
        return f"its dtype is {finding.dtype}, should be {tag}"
    return (
        _of_another_kind(probe, finding, expected, fed, rule)
        if finding.precisions is None and probe.castable
        else ""
    )


def _own_dtype(probe: Probe, expected: str, fed: tuple[str, str]) -> bool:
    """Return whether the result's dtype does not follow the inputs', outside of regions either."""
    if not probe.case.own_dtype:
        return False
    outside = probe.cast_outside(expected, *fed)
    return outside is None or outside.dtype != expected


def _of_another_kind(
    probe: Probe, finding: Finding, expected: str, fed: tuple[str, str], rule: Rule
) -> str:
    """Return a complaint where a result has another size, dtype or random key than it should.

    It should have those of the result outside of regions for inputs in the expected precision.
    """
    outside = probe.cast_outside(expected, *fed)
    if outside is None:
        return ""
    found, right = finding.values, outside.values
    if found is not None and found.size != right.size:
        return (
            f"it has {found.size} numbers, and {right.size} outside of regions for inputs in "
            f"{expected}"
        )
    if (
        outside.dtype not in ELIGIBLE
        and finding.dtype not in ELIGIBLE
        and finding.dtype != outside.dtype
    ):
        return (
            f"its dtype is {finding.dtype}, and {outside.dtype} outside of regions for inputs in "
            f"{expected}"
        )
    if found is not None and probe.keyed and not _of_its_key(probe, found, expected, fed, rule):
        return f"its numbers are not those of its key outside of regions for inputs in {expected}"
    return ""


def _of_its_key(
    probe: Probe, found: np.ndarray, expected: str, fed: tuple[str, str], rule: Rule
) -> bool:
    """Return whether random numbers are those that the same key gives outside of regions.

    Last bits may differ between compilations. Where a rule keeps low inputs, a draw may be made
    from their float32 values: low parameters would bias it.
    """
    widened = () if rule in (Rule.LOW, Rule.FP32) else ("float32",)
    outside = [
        run.values
        for dtype in (expected, *widened)
        if (run := probe.cast_outside(dtype, *fed)) is not None
    ]
    return any(
        np.allclose(found, values, rtol=_LAST_BITS, atol=0, equal_nan=True) for values in outside
    )


def _spoken(finding: Finding) -> str:
    if finding.precisions is None:
        return "the numbers cannot tell"
    return " or ".join(sorted(finding.precisions)) or f"no known way ({finding.note})"


def _runs_outside(probe: Probe, low: str) -> bool:
    try:
        probe.look(nullcontext, "low", low)
    except Exception:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
