"""The report of a search, made from its trials and from those of the usual policies."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from unamp.amp_warnings import trivial_answer
from unamp.dtypes import PRECISIONS
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy
from unamp.presets import PRESETS
from unamp.tracing import trace
from unamp.tuning.places import Place, Unit
from unamp.tuning.reports import PlaceReport, PresetReport, TuneReport
from unamp.tuning.rules import held_everywhere
from unamp.tuning.search import Search
from unamp.tuning.trials import Trial
from unamp.tuning.tuned import Tuned, with_reasons

#: The found policy is no better than a preset if at most this share more of the work is low.
_LITTLE = 0.02


def result_of(search: Search, held: frozenset[Unit]) -> Tuned:
    """Return the result of a search that ended with some units held."""
    subject = search.subject
    places = frozenset().union(*held)
    policy, rules = subject.rules(places)
    interrupted = search.stopped.startswith("interrupted")
    error, fresh, low = _errors_and_share(search, held, places, interrupted)
    presets = [] if interrupted or not held else _preset_reports(search)
    remarks = _trivial(policy.dtype, low, presets, nothing_held=not held)
    for said in remarks:
        trivial_answer(said)
    why = {place: _why(search, unit, held) for unit in held for place in unit}
    ordered = {place: why[place] for place in subject.places if place in why}
    everywhere = held_everywhere(places, subject.places)
    reasons = {
        op: next(reason for place, reason in ordered.items() if place.op == op) for op in everywhere
    }
    reasons |= {place.op: reason for place, reason in ordered.items() if not place.layer}
    report = TuneReport(
        network=subject.title, framework=subject.framework(), base=subject.base, by=search.by,
        effort=search.effort, tolerance=search.tolerance, limit=search.limit,
        batches=len(search.batches), error=error, held_out=fresh, all_low=search.all_low,
        spread=search.spread, low=low, places=_places(search, ordered),
        tried=_tried(search), presets=tuple(presets), runs=subject.runs,
        seconds=time.perf_counter() - search.began, stopped=search.stopped,
        remarks=tuple(remarks),
    )  # fmt: skip
    return Tuned(policy, with_reasons(rules, ordered), reasons, report)


def _errors_and_share(
    search: Search, held: frozenset[Unit], places: frozenset[Place], interrupted: bool
) -> tuple[float, float | None, float]:
    """Return the last run's error, the held-out batch's error, and the low share of the work."""
    error = search.trials.error(held)
    if interrupted:
        return error, None, search.low(held)
    ran = trace()
    if search.fresh is None:
        search.subject.error(places, search.batches[0], search.references[0], ran)
        return error, None, search.subject.low_share(ran)
    fresh = search.subject.error(places, search.fresh, search.fresh_reference, ran)
    return error, fresh, search.subject.low_share(ran)


def _why(search: Search, unit: Unit, held: frozenset[Unit]) -> str:
    dtype = search.subject.base.dtype
    if search.overflows(unit):
        place = max(unit, key=lambda place: (search.subject.peak.get(place, 0.0), place))
        where = f" in {place.layer}" if len(unit) > 1 and place.layer else ""
        peak = f"{search.subject.peak[place]:.6g}{where}"
        return f"its result reaches {peak}; {dtype} ends at {PRECISIONS[dtype].largest:.6g}"
    without = search.trials.known(held - {unit})
    if without is None:
        return "the search ended before it was tried alone"
    if held - {unit} in search.raised:
        return f"in {dtype}, too, run raises {search.raised[held - {unit}]}"
    if math.isinf(without):
        return f"in {dtype}, too, the result is not finite"
    return f"in {dtype}, too, the error is {without:.2g}"


def _places(search: Search, why: Mapping[Place, str]) -> tuple[PlaceReport, ...]:
    work, peak = search.subject.work, search.subject.peak
    return tuple(
        PlaceReport(
            *place, work.get(place, 0.0), place in why, peak.get(place, 0.0), why.get(place, "")
        )
        for place in search.subject.places
    )


def _tried(search: Search) -> tuple[Trial, ...]:
    return tuple(
        Trial(len(held), search.low(held), max(errors), search.trials.within(errors))
        for held, errors in search.trials.errors.items()
        if search.trials.known(held) is not None
    )


def _preset_reports(search: Search) -> list[PresetReport]:
    """Return the trials of the usual policies at O1: unamp's lists, and the framework's lists."""
    subject = search.subject
    if subject.base.level != "O3":
        return []
    framework = subject.framework()
    own = [name for name in PRESETS if framework and name.startswith(framework)]
    found = [
        _preset_report(search, Policy("O1", subject.base.dtype, preset=name))
        for name in [*own[:1], "unamp"]
    ]
    return [report for report in found if report is not None]


def _preset_report(search: Search, policy: Policy) -> PresetReport | None:
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


def _trivial(
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
