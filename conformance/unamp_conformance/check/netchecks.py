"""One network under one policy: decisions, outputs, gradients, dtypes, running statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unamp.adapter import OpRecord
from unamp.dtypes import ELIGIBLE
from unamp.policy import Policy, Rule
from unamp_conformance.check.netbounds import Reference
from unamp_conformance.check.netruns import NetworkRun, run
from unamp_conformance.subjects import Subject

__all__ = ["NETWORK_CHECKS", "Outcome", "check_network", "expected_dtype", "misjudged"]

_SAMPLE = 16

#: A message that is empty where nothing is wrong, and the observations.
Outcome = tuple[str, dict[str, Any]]


def check_network(subject: Subject, reference: Reference, policy: Policy) -> dict[str, Outcome]:
    """Run a network under a policy and compare it with the policy and the float64 reference.

    Args:
        subject: the framework and device.
        reference: the network's reference.
        policy: the policy.

    Returns:
        For each of `NETWORK_CHECKS` (``statistics`` only where there are any) a message, empty
        where nothing is wrong, and the observations.
    """
    observed = run(
        reference.network,
        subject.operations,
        lambda: subject.region(policy),
        device=subject.device,
        trace=True,
    )
    return {
        check: look(subject, reference, policy, observed)
        for check, look in NETWORK_CHECKS.items()
        if check != "statistics" or reference.network.buffers
    }


def _decisions(
    subject: Subject, reference: Reference, policy: Policy, observed: NetworkRun
) -> Outcome:
    rules = {
        op: subject.rule(policy, op)
        for op in {*observed.called, *(record.op for record in observed.records)}
    }
    found = [
        wrong
        for record in observed.records
        if (wrong := misjudged(policy, rules[record.op], record))
    ]
    complaints = list(dict.fromkeys(complaint for complaint, *_ in found))
    # What the policy leaves alone has no decision to record.
    judged = {op for op in observed.called if rules[op] not in (None, Rule.UNTOUCHED)}
    if unseen := sorted(judged - {record.op for record in observed.records}):
        complaints.append(f"not in the trace: {', '.join(unseen)}")
    table = sorted(
        {
            f"{r.op}: {r.rule.value}, {' '.join(r.inputs)} -> {r.compute} -> {r.output}"
            for r in observed.records
        }
    )
    return "; ".join(complaints), {"trace": table} | _differing(wrong[1:] for wrong in found)


def _differing(found: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """Return the details of what was expected and seen; empty where all is right."""
    rows = [
        {"of": of, "expected": expected, "observed": seen}
        for of, expected, seen in dict.fromkeys(found)
    ]
    return {"wrong": rows} if rows else {}


def expected_dtype(policy: Policy, rule: Rule, inputs: Sequence[str]) -> str | None:
    """Return the dtype that a rule means for inputs, or None where it leaves them as they are."""
    eligible = [dtype for dtype in inputs if dtype in ELIGIBLE]
    if not eligible or rule is Rule.UNTOUCHED:
        return None
    dtypes = {*eligible}
    low = dtypes - {"float32"}
    return {
        Rule.LOW: policy.dtype,
        Rule.FP32: "float32",
        Rule.WIDEST: eligible[0] if len(dtypes) == 1 else "float32",
        Rule.NARROWEST: low.pop() if len(low) == 1 else "float32",
    }[rule]


def misjudged(
    policy: Policy, wanted: Rule | None, record: OpRecord
) -> tuple[str, str, str, str] | None:
    """Return the fault of a record of a trace, if any.

    It is a sentence, the operation, the expectation and what was seen instead.
    """
    if wanted is None:
        return None
    if record.rule is not wanted:
        complaint = f"{record.op} ran under {record.rule.value}, the policy says {wanted.value}"
        return complaint, record.op, wanted.value, record.rule.value
    expected = expected_dtype(policy, wanted, record.inputs)
    if expected is None or record.compute is None:
        return None
    computed = record.computed_in or policy.dtype
    if computed != expected:
        complaint = (
            f"{record.op} ({wanted.value}) computed in {computed} from {' '.join(record.inputs)}, "
            f"should be {expected}"
        )
        return complaint, record.op, expected, computed
    return None


def _compared(
    prefixes: tuple[str, ...],
) -> Callable[[Subject, Reference, Policy, NetworkRun], Outcome]:
    def compare(
        subject: Subject, reference: Reference, policy: Policy, observed: NetworkRun
    ) -> Outcome:
        errors = {n: e for n, e in reference.errors(observed).items() if n.startswith(prefixes)}
        precision = policy.dtype if subject.stated(policy).active else "float32"
        bounds = reference.bounds(precision)
        wrong = [
            f"{n}: error {e:.3g}, bound {bounds[n]:.3g}"
            for n, e in errors.items()
            if not e <= bounds[n]
        ]
        worst = max(errors, key=lambda n: errors[n] / bounds[n])
        details: dict[str, Any] = {
            "worst": worst,
            "error": _finite(errors[worst]),
            "bound": bounds[worst],
            "precision": precision,
        }
        if "output" in errors:
            details["sample"] = _sample(observed)
            details["output bound"] = bounds["output"]
        return "; ".join(wrong), details

    return compare


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _sample(observed: NetworkRun) -> list[float]:
    """Return a few evenly spaced numbers of the output, to compare frameworks by.

    Empty if one of them is not finite.
    """
    flat = observed.output.ravel()
    chosen = flat[:: max(flat.size // _SAMPLE, 1)][:_SAMPLE].tolist()
    return [float(f"{v:.9g}") for v in chosen] if all(map(math.isfinite, chosen)) else []


def _dtypes(
    subject: Subject, reference: Reference, policy: Policy, observed: NetworkRun
) -> Outcome:
    wrong = {what: dtype for what, dtype in observed.dtypes.items() if dtype != "float32"}
    complaint = "; ".join(f"{what} is {dtype}, should be float32" for what, dtype in wrong.items())
    return complaint, _differing((what, "float32", dtype) for what, dtype in wrong.items())


def _statistics(
    subject: Subject, reference: Reference, policy: Policy, observed: NetworkRun
) -> Outcome:
    before = reference.network.statistics()
    still = [n for n, values in observed.buffers.items() if (values == before[n]).all()]
    message, details = _compared(("buffer",))(subject, reference, policy, observed)
    frozen = f"not updated by training: {', '.join(still)}" if still else ""
    return "; ".join(filter(None, (frozen, message))), details


#: Every check of a network by its name.
NETWORK_CHECKS: Mapping[str, Callable[[Subject, Reference, Policy, NetworkRun], Outcome]] = {
    "decisions": _decisions,
    "outputs": _compared(("output", "loss")),
    "gradients": _compared(("gradient",)),
    "dtypes": _dtypes,
    "statistics": _statistics,
}
