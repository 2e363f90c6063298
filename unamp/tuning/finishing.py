"""The report of a search, made from its trials."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from unamp.amp_warnings import trivial_answer
from unamp.dtypes import PRECISIONS
from unamp.tracing import trace
from unamp.tuning.places import Place, Unit
from unamp.tuning.presets import preset_reports, trivial
from unamp.tuning.reports import PlaceReport, TuneReport
from unamp.tuning.rules import held_everywhere
from unamp.tuning.search import Search
from unamp.tuning.trials import Trial
from unamp.tuning.tuned import Tuned, with_reasons


def result_of(search: Search, held: frozenset[Unit]) -> Tuned:
    """Return the result of a search that ended with some units held."""
    subject = search.subject
    places = frozenset().union(*held)
    policy, rules = subject.rules(places)
    interrupted = search.stopped.startswith("interrupted")
    error, fresh, low = _errors_and_share(search, held, places, interrupted)
    presets = [] if interrupted or not held else preset_reports(search)
    remarks = trivial(policy.dtype, low, presets, nothing_held=not held)
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
