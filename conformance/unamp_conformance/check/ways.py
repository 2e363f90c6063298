"""One program in one way of a framework: followed, refused, or lost.

It is followed where it gives what the eager run gives, refused where an error is raised before it
computes, and lost where it silently computes in another precision.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import unamp
from unamp.adapter import Way
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy
from unamp_conformance.check.networks import Lacking
from unamp_conformance.check.programs import program
from unamp_conformance.check.wayjudging import judged
from unamp_conformance.check.wayruns import eagerly, in_other_precisions, low_inputs, run_in
from unamp_conformance.results import Finding
from unamp_conformance.subjects import Subject

__all__ = ["check_way"]


def check_way(subject: Subject, way: Way, name: str, policy: Policy) -> Finding:
    """Compare a run in one of a framework's ways, under a policy, with the same run eagerly.

    Args:
        subject: the framework and device.
        way: one of its ways.
        name: the network or operation.
        policy: the policy.
    """
    if way.absent:
        return Finding("not run", way.absent)
    if reason := way.impossible(name):
        return _impossible(subject, way, name, reason)
    if reason := way.refusal(policy):
        return _refused(subject, way, name, policy, reason)
    # A framework may use another kernel where gradients are wanted: the eager run computes them
    # where the way does.
    alike = (name, way.run is None, way.gradients, low := low_inputs(subject, policy, name))
    try:
        eager = eagerly(subject, *alike, policy)
    except Lacking:
        raise
    except BannedOperation as error:
        return _banned(subject, way, name, low, policy, error)
    except Exception as error:  # other checks report it
        return Finding("not applicable", f"eagerly it fails too: {_line(error)}")
    try:
        seen = run_in(subject, way, program(name, scalar=way.run is None), low, policy)
    except Exception as error:
        return _raised(error)
    return judged(
        subject, way, name, policy, eager, seen, in_other_precisions(subject, alike, policy)
    )


def _impossible(subject: Subject, way: Way, name: str, reason: str) -> Finding:
    """Show that the framework itself cannot run a program in a way, without any region."""
    try:
        run_in(subject, way, program(name, scalar=way.run is None), (), None)
    except Exception as error:
        return Finding(
            "not applicable",
            f"{subject.framework} itself cannot: {reason}",
            {"upstream": _line(error)},
        )
    return Finding(
        "failed",
        f"{subject.framework} can run it by now, and the way says that it cannot: {reason}",
    )


def _refused(subject: Subject, way: Way, name: str, policy: Policy, reason: str) -> Finding:
    """Show that the way is refused, and that nothing was computed before."""
    scalar = way.run is None
    with unamp.trace() as trace:
        before = len(trace.records)
        try:
            run_in(
                subject,
                way,
                program(name, scalar=scalar),
                low_inputs(subject, policy, name),
                policy,
                gradients=False,
            )
        except NotExpressible as error:
            ran = [record.op for record in trace.records[before:]]
            details = {"refusal": _line(error), "reason": reason}
            if ran:
                return Finding(
                    "failed",
                    f"refused, but after it computed {', '.join(dict.fromkeys(ran))}",
                    details,
                )
            return Finding("refused", reason, details)
        except Exception as error:
            return _raised(error)
    return Finding("failed", f"the adapter says that it refuses this way, but it ran: {reason}")


def _banned(
    subject: Subject, way: Way, name: str, low: tuple[int, ...], policy: Policy, banned: Exception
) -> Finding:
    """Show that a banned operation does not run in this way either."""
    try:
        run_in(subject, way, program(name, scalar=way.run is None), low, policy)
    except Exception as error:
        causes = list(_causes(error))
        if any(isinstance(cause, BannedOperation | NotExpressible) for cause in causes) or _line(
            banned
        ) in str(error):
            return Finding("passed")
        return _raised(error)
    return Finding(
        "lost", f"lost in silence: it ran, and eagerly the policy bans it: {_line(banned)}"
    )


def _raised(error: Exception) -> Finding:
    said = f"{type(error).__name__}: {_line(error)}"
    kept = {"traceback": traceback.format_exc()[-3000:].splitlines()}
    if isinstance(error, NotExpressible):
        return Finding("failed", f"refused, and the way does not say so: {said}", kept)
    return Finding(
        "failed", f"raised, where a way is followed or refused by NotExpressible: {said}", kept
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )[:300]
