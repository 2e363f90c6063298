"""The usual policies, which need no search, compared with the policy that was found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy
from unamp.presets import PRESETS
from unamp.tracing import trace
from unamp.tuning.reports import PresetReport
from unamp.tuning.search import Search

#: The found policy is no better than a preset if at most this share more of the work is low.
_LITTLE = 0.02


def preset_reports(search: Search) -> list[PresetReport]:
    """Return the trials of the usual policies at O1: unamp's lists, and the framework's lists."""
    subject = search.subject
    if subject.base.level != "O3":
        return []
    framework = subject.framework()
    own = [name for name in PRESETS if framework and name.startswith(framework)]
    found = [
        _report(search, Policy("O1", subject.base.dtype, preset=name))
        for name in [*own[:1], "unamp"]
    ]
    return [report for report in found if report is not None]


def _report(search: Search, policy: Policy) -> PresetReport | None:
    """Return the trial of a policy; None where the budget ends first or the network cannot run."""
    subject, ran, errors = search.subject, trace(), list[float]()
    for batch, reference in zip(search.batches, search.references, strict=True):
        if not search.budget.left(subject.runs):
            return None
        try:
            errors.append(
                subject.error_under(policy, (), batch, reference, None if errors else ran)
            )
        except (BannedOperation, NotExpressible):
            return None
        if not math.isfinite(errors[-1]):
            break
    return PresetReport(policy, subject.low_share(ran), max(errors), search.trials.within(errors))


def trivial(
    dtype: str, low: float, presets: Sequence[PresetReport], *, nothing_held: bool
) -> list[str]:
    """Return a sentence if a policy that needs no search is as good as the one that was found."""
    if nothing_held:
        return [f"everything may run in {dtype}: no exception is needed"]
    good = [found for found in presets if found.holds and found.low >= low - _LITTLE]
    return [
        f"O1 of the preset {found.policy.preset} already holds, "
        f"with {found.low:.1%} of the work low: it needs no rules"
        for found in sorted(good, key=lambda found: -found.low)[:1]
    ]
