"""One operation under one policy: does what the numbers say agree with what the policy says?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from unamp.dtypes import ELIGIBLE
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp_conformance.probes import FEEDS, Finding, Probe
from unamp_conformance.subjects import Subject

__all__ = ["check_operation", "expected_precision"]

#: The feeds that can show each rule broken. A rule that changes nothing for a feed is looked at in a full run only.
_TELLING = {
    Rule.LOW: ("float32", "mixed"),
    Rule.FP32: ("low", "mixed"),
    Rule.WIDEST: ("low", "mixed"),
    Rule.NARROWEST: ("low", "mixed"),
    Rule.UNTOUCHED: ("float32", "low"),
}


def expected_precision(rule: Rule, feed: str, low: str) -> str | None:
    """Return the precision that a rule means for inputs of a feed; None where the framework decides."""
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32 or feed == "float32":
        return "float32"
    if feed == "low" or rule is Rule.NARROWEST:
        return low
    return "float32" if rule is Rule.WIDEST else None


def check_operation(subject: Subject, probe: Probe, policy: Policy, *, full: bool = False) -> tuple[str, dict[str, Any]]:
    """Probe an operation under a policy.

    Args:
        subject: the framework and device.
        probe: the operation's probe there.
        policy: the policy.
        full: look at every feed, not only those that can show the rule broken.

    Returns:
        What is wrong (empty where nothing is) and the observations.
    """
    rule = subject.rule(policy, probe.case.op)
    if rule is None:
        return "", {"rule": "the framework's own"}
    if probe.case.layer and probe.case.op not in (*policy.allow, *policy.deny):
        return "", {"rule": "that of its parts"}
    region = lambda: subject.region(policy)  # noqa: E731 - reads better at its uses
    if rule is Rule.BANNED:
        try:
            probe.look(region)
        except BannedOperation:
            return "", {"rule": rule.value}
        return "the policy bans it, but it ran", {"rule": rule.value}

    wrong, seen, differing = [], [], []
    for feed in FEEDS if full else _TELLING[rule]:
        expected = expected_precision(rule, feed, policy.dtype)
        if expected is None or (feed != "float32" and probe.castable < (2 if feed == "mixed" else 1)):
            continue
        try:
            findings = probe.look(region, feed, policy.dtype)
        except Exception as error:
            if rule.leaves_agreeing and feed == "low" and not _runs_outside(probe, policy.dtype):
                continue  # the framework has no such kernel, and the rule asks for no cast
            wrong.append(f"{feed} inputs: {type(error).__name__}: {_first_line(error)}")
            differing.append({"of": f"{feed} inputs", "expected": expected, "observed": type(error).__name__})
            continue
        for finding in findings:
            seen.append(f"{feed} inputs, {finding.what}: {_spoken(finding)}, tag {finding.dtype}")
            if complaint := _complaint(probe, finding, expected, feed):
                what = f"{feed} inputs, {finding.what}"
                wrong.append(f"{what}: {complaint}")
                differing.append({"of": what, "expected": expected, "observed": f"{_spoken(finding)}, tag {finding.dtype}"})
    return "; ".join(wrong), {"rule": rule.value, "seen": seen, "wrong": differing}


def _complaint(probe: Probe, finding: Finding, expected: str, feed: str) -> str:
    if finding.precisions is not None and expected not in finding.precisions:
        return f"computed in {_spoken(finding)}, the policy says {expected}"
    if probe.castable == 0:
        expected = probe.outside.dtype
    tag = "float32" if finding.what != "forward" and feed == "float32" else expected
    if finding.dtype in ELIGIBLE and finding.dtype != tag and not probe.case.own_dtype:
        return f"its dtype is {finding.dtype}, should be {tag}"
    return ""


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
