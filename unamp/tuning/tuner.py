"""`unamp.tune`: the cheapest policy whose results stay within a tolerance of the float32 run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unamp.amp_warnings import trivial_answer
from unamp.dtypes import PRECISIONS
from unamp.policy import Policy
from unamp.tracing import trace
from unamp.tuning import checks, measuring, resuming
from unamp.tuning.budgets import budget_of
from unamp.tuning.places import Place, Unit, units_of
from unamp.tuning.presets import preset_reports, trivial
from unamp.tuning.progress import Progress, Step, showing
from unamp.tuning.reports import PlaceReport, TuneReport
from unamp.tuning.result import Tuned, with_reasons
from unamp.tuning.rules import held_everywhere
from unamp.tuning.searches import by_harm, halves, ranked
from unamp.tuning.subject import Subject
from unamp.tuning.trials import BudgetSpent, Trial, Trials

__all__ = ["tune"]


def tune(
    run: Callable[[Any], Any],
    network: Any,
    batches: Sequence[Any],
    *,
    dtype: object = None,
    tolerance: float = 1e-2,
    base: Policy | None = None,
    by: str = "place",
    measure: Callable[[Any, Any], Any] | None = None,
    effort: str = "halves",
    margin: float = 0.8,
    held_out: Any = None,
    budget: object = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | Progress | None = None,
) -> Tuned:
    """Find what must stay in float32, so that a network's results stay within a tolerance; all else runs in a low dtype.

    The network is run in float32, and then with some of its operations held in float32 and the others low, again and again.

    Args:
        run: takes a batch, runs the network, and returns results: tensors, arrays or numbers, in lists or mappings. The same
            batch must give the same results: evaluation mode, no random numbers. For training it may return the loss and the
            gradients (of a scaled loss, unscaled again).
        network: the network, whose layers the rules are about; None with ``by="operation"``, for a function without layers.
        batches: a list of batches. The last of several is held out: it shows the error on what the search has not seen.
        dtype: the low dtype; float16 unless `base` has another.
        tolerance: the largest error that is allowed. Without `measure` that is the relative error of each result, by norms.
        base: the policy to begin with; everything low unless given. Its deny list stays.
        by: what is held as one: an operation in a layer (``"place"``), wherever it is (``"operation"``), or all that a layer
            runs itself (``"layer"``).
        measure: the error of a run: a function of what `run` returned in float32, and in the run in question. A loss or an
            accuracy: ``lambda exact, low: abs(exact - low)``.
        effort: ``"halves"``, or ``"ranked"``: a further run for each place, which keeps more of the work low where many
            roundings add up.
        margin: the part of the tolerance that the search may use, so that other batches are within all of it.
        held_out: a batch to hold out in place of the last one.
        budget: how many runs, or for how long (``"90s"``, ``"10min"``), may be searched. Then the best so far is returned, as
            it is after Ctrl-C.
        resume: a file for what was tried. Where it exists, the search goes on with it.
        progress: a function called after every run with a `Step`; False for none. None: a line where there is a terminal.

    Raises:
        TypeError, ValueError: for bad arguments; where two float32 runs differ; where the error is beyond the tolerance with
            everything in float32; where nothing ran that a policy could have low; and where the budget ends before a search.
        NotExpressible: where the framework cannot follow a policy, or a rule on a layer.
    """
    checks.check_arguments(run, batches, tolerance, margin, by, effort)
    if network is None and by != "operation":
        raise ValueError('network is None, which goes with by="operation" alone: there are no layers to hold')
    policy = checks.base_policy(base, dtype)
    searched, fresh = (batches, held_out) if held_out is not None or len(batches) == 1 else (batches[:-1], batches[-1])
    search = _Search(Subject(run, network, policy, measure), searched, fresh, tolerance, tolerance * margin)
    search.by, search.effort, search.budget, search.resume = by, effort, budget_of(budget), resume
    with showing(progress) as search.progress:
        search.prepare()
        held = search.search()
        return search.result(held)


class _Search:
    """One search: its batches with their float32 results, its units, and its trials."""

    by: str
    effort: str
    budget: Any
    resume: str | os.PathLike[str] | None
    progress: Progress

    def __init__(self, subject: Subject, batches: Sequence[Any], fresh: Any, tolerance: float, limit: float) -> None:
        self.subject, self.batches, self.fresh = subject, batches, fresh
        self.tolerance, self.limit = tolerance, limit
        self.references: list[Any] = []
        self.fresh_reference: Any = None
        self.units: list[Unit] = []
        self.work: dict[Unit, float] = {}
        self.all_low = 0.0
        self.stopped = ""
        self.began = time.perf_counter()
        self.trials: Trials[Unit] = Trials(self._run, len(batches), limit, self._may_run, self._told)

    def prepare(self) -> None:
        """Run in float32, and with everything low: what there is to search."""
        subject, batches = self.subject, self.batches
        needed = 3 * len(batches) + 1 + 2 * (self.fresh is not None)
        if self.budget.runs < needed:
            raise ValueError(f"a budget of {self.budget.runs} runs ends before the search begins, which takes {needed}")
        subject.learn_layers()  # what is no network is refused before anything runs
        first = subject.exact(batches[0])
        subject.learn_layers()
        checks.check_repeatable(subject, first, subject.exact(batches[0]), self.limit)
        checks.warn_of_statistics(subject)
        traced = [first, *map(subject.exact, batches[1:])]
        if self.fresh is not None:
            self.fresh_reference = subject.exact(self.fresh)[0]
        self.references = [results for results, _ in traced]
        for _, ran in traced:
            subject.learn_work(ran)
        errors = []
        for batch, reference in zip(batches, self.references, strict=True):
            with_rules = trace()
            errors.append(subject.error((), batch, reference, with_rules))
            subject.learn_places(with_rules)
        self.all_low = max(errors)
        if not subject.places:
            raise ValueError(
                f"nothing ran that {subject.base!r} would have low: run must call the network eagerly, on floating tensors "
                "(a graph that is compiled is not seen)"
            )
        self.units = units_of(subject.places, self.by)
        self.work = {unit: math.fsum(subject.work.get(place, 0.0) for place in unit) for unit in self.units}
        self.trials.errors[frozenset()] = errors

    def search(self) -> frozenset[Unit]:
        """Return the units to hold."""
        if self.all_low <= self.limit:
            return frozenset()
        self._remember()
        everything = frozenset(self.units)
        try:
            if not self.trials.holds(everything):
                raise ValueError(
                    f"with every place in float32 the error is still {self.trials.known(everything):.2g}, and the search may "
                    f"use {self.limit:.2g}: no policy is in reach; allow a larger tolerance, or look for what is low by itself"
                )
            return self._searched()
        except BudgetSpent:
            self.stopped = "the budget ended the search: this is the best so far"
        except KeyboardInterrupt:
            self.stopped = "interrupted: this is the best so far"
        finally:
            self._write()
        best = self.trials.best(self.work)
        if best is None:
            raise ValueError("the search was ended before it found anything within the tolerance; give it a larger budget")
        return best

    def _searched(self) -> frozenset[Unit]:
        everything, base = frozenset(self.units), sorted(self.units, key=self._most_work_first)
        if self.effort == "halves":
            return halves(base, self.trials.holds)
        harm = {unit: math.inf if self._overflows(unit) else self.trials.first(everything - {unit}) for unit in base}
        return ranked(by_harm(base, harm, self.work), self.trials.holds)

    def result(self, held: frozenset[Unit]) -> Tuned:
        """Return the result for what is held."""
        subject = self.subject
        places = frozenset().union(*held)
        policy, rules = subject.rules(places)
        interrupted = self.stopped.startswith("interrupted")
        error, fresh, low = self._errors_and_share(held, places, interrupted)
        presets = [] if interrupted or not held else preset_reports(
            subject, list(zip(self.batches, self.references, strict=True)), self.limit,
            lambda: self.budget.left(subject.runs),
        )  # fmt: skip
        remarks = trivial(policy.dtype, low, presets, nothing_held=not held)
        for said in remarks:
            trivial_answer(said)
        why = {place: self._why(unit, held) for unit in held for place in unit}
        ordered = {place: why[place] for place in subject.places if place in why}
        everywhere = held_everywhere(places, subject.places)
        reasons = {op: next(reason for place, reason in ordered.items() if place.op == op) for op in everywhere}
        reasons |= {place.op: reason for place, reason in ordered.items() if not place.layer}
        classes = subject.names.classes
        report = TuneReport(
            network=classes[-1] if classes else "", framework=subject.framework(), base=subject.base, by=self.by,
            effort=self.effort, tolerance=self.tolerance, limit=self.limit, batches=len(self.batches), error=error,
            held_out=fresh, all_low=self.all_low, low=low, places=self._places(ordered), tried=self._tried(),
            presets=tuple(presets), runs=subject.runs, seconds=time.perf_counter() - self.began, stopped=self.stopped,
            remarks=tuple(remarks),
        )  # fmt: skip
        return Tuned(policy, with_reasons(rules, ordered), reasons, report)

    def _errors_and_share(
        self, held: frozenset[Unit], places: frozenset[Place], interrupted: bool
    ) -> tuple[float, float | None, float]:
        """Return the error, the one of the batch that was held out, and the share of the work that is low, from a last run."""
        error = self.trials.error(held)
        if interrupted:
            return error, None, self._low(held)
        ran = trace(values=True)
        if self.fresh is None:
            self.subject.error(places, self.batches[0], self.references[0], ran)
            return error, None, self.subject.low_share(ran)
        fresh = self.subject.error(places, self.fresh, self.fresh_reference, ran)
        return error, fresh, self.subject.low_share(ran)

    def _why(self, unit: Unit, held: frozenset[Unit]) -> str:
        dtype = self.subject.base.dtype
        if self._overflows(unit):
            place = max(unit, key=lambda place: (self.subject.peak.get(place, 0.0), place))
            where = f" in {place.layer}" if len(unit) > 1 and place.layer else ""
            peak = f"{self.subject.peak[place]:.6g}{where}"
            return f"its result reaches {peak}; {dtype} ends at {PRECISIONS[dtype].largest:.6g}"
        without = self.trials.known(held - {unit})
        if without is None:
            return "the search ended before it was tried alone"
        if math.isinf(without):
            return f"in {dtype}, too, the result is not finite"
        return f"in {dtype}, too, the error is {without:.2g}"

    def _places(self, why: Mapping[Place, str]) -> tuple[PlaceReport, ...]:
        work, peak = self.subject.work, self.subject.peak
        total = math.fsum(work.get(place, 0.0) for place in self.subject.places) or 1.0
        return tuple(
            PlaceReport(*place, work.get(place, 0.0) / total, place in why, peak.get(place, 0.0), why.get(place, ""))
            for place in self.subject.places
        )

    def _tried(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(len(held), self._low(held), max(errors), len(errors) == len(self.batches) and max(errors) <= self.limit)
            for held, errors in self.trials.errors.items()
            if self.trials.known(held) is not None
        )

    def _low(self, held: frozenset[Unit]) -> float:
        return 1.0 - math.fsum(self.work[unit] for unit in held) / (math.fsum(self.work.values()) or 1.0)

    def _overflows(self, unit: Unit) -> bool:
        largest = PRECISIONS[self.subject.base.dtype].largest
        return any(self.subject.peak.get(place, 0.0) > largest for place in unit)

    def _most_work_first(self, unit: Unit) -> tuple[bool, float]:
        return self._overflows(unit), -self.work[unit]

    def _run(self, held: frozenset[Unit], batch: int) -> float:
        return self.subject.error(frozenset().union(*held), self.batches[batch], self.references[batch])

    def _may_run(self) -> bool:
        return bool(self.budget.left(self.subject.runs + (self.fresh is not None)))

    def _told(self, held: frozenset[Unit]) -> None:
        best = self.trials.best(self.work)
        best = frozenset(self.units) if best is None else best
        self.progress(Step(self.subject.runs, len(self.units), len(best), self._low(best)))
        self._write()

    def _memory(self) -> resuming.Memory:
        subject = self.subject
        numbers = {unit: number for number, unit in enumerate(self.units)}
        measure = "norms" if subject.measure is None else getattr(subject.measure, "__qualname__", "the user's")
        network = " ".join(subject.names.classes)
        setting = {"network": network, "base": repr(subject.base), "by": self.by, "measure": measure}
        results = [] if subject.measure is not None else [tuple(measuring.norms(each)) for each in self.references]
        return resuming.Memory(
            setting,
            tuple(subject.places),
            tuple(results) or tuple(() for _ in self.references),
            tuple((frozenset(numbers[unit] for unit in held), tuple(e)) for held, e in self.trials.errors.items()),
        )

    def _remember(self) -> None:
        """Take over what the file to resume from knows."""
        if self.resume is None or not os.path.exists(self.resume):
            return
        for held, errors in resuming.read(self.resume, self._memory()).tried:
            self.trials.errors[frozenset(self.units[number] for number in held)] = list(errors)

    def _write(self) -> None:
        if self.resume is not None:
            resuming.write(self.resume, self._memory())
