"""One search: the runs before it, its trials, its budget, and its file to resume from."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

from unamp.dtypes import PRECISIONS
from unamp.tracing import trace
from unamp.tuning import checks, measuring, resuming
from unamp.tuning.places import Unit, units_of
from unamp.tuning.progress import Progress, Step
from unamp.tuning.search_order import at_first, by_harm, halves, ranked
from unamp.tuning.subject import Subject
from unamp.tuning.trials import Budget, BudgetSpent, Trials, allowance, spread_of


class Search:
    """One search: its batches with their float32 results, its units, and its trials."""

    by: str
    effort: str
    budget: Budget
    resume: str | os.PathLike[str] | None
    progress: Progress

    def __init__(
        self,
        subject: Subject,
        batches: Sequence[object],
        fresh: object,
        tolerance: float,
        limit: float,
    ) -> None:
        self.subject, self.batches, self.fresh = subject, batches, fresh
        self.tolerance, self.limit = tolerance, limit
        self.references: list[Any] = []
        self.fresh_reference: object = None
        self.units: list[Unit] = []
        self.work: dict[Unit, float] = {}
        self.all_low = self.spread = 0.0
        self.stopped = ""
        self.raised: dict[frozenset[Unit], str] = {}
        self.began = time.perf_counter()
        self.trials: Trials[Unit] = Trials(
            self._run, len(batches), limit, self._may_run, self._told
        )

    def prepare(self) -> None:
        """Run in float32, and with everything low, to find the places to search."""
        subject, batches = self.subject, self.batches
        needed = 3 * len(batches) + 1 + 2 * (self.fresh is not None)
        if self.budget.runs < needed:
            raise ValueError(
                f"a budget of {self.budget.runs} runs ends before the search begins, "
                f"which takes {needed}"
            )
        subject.learn_layers()  # refuses what is no network, before anything runs
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
        for batch, (reference, exact) in zip(batches, traced, strict=True):
            low = trace()
            errors.append(subject.error((), batch, reference, low))
            subject.learn_places(low, exact)
        self.all_low = max(errors)
        if not subject.places:
            raise ValueError(
                f"nothing ran that {subject.base!r} would have low: run must call the network "
                "eagerly, on floating tensors (a graph that is compiled is not seen)"
            )
        self.units = units_of(subject.places, self.by)
        self.work = {
            unit: math.fsum(subject.work.get(place, 0.0) for place in unit) for unit in self.units
        }
        self.trials.errors[frozenset()] = errors

    def search(self) -> frozenset[Unit]:
        """Return the units to hold."""
        if self.all_low <= self.limit and self._safe():
            return frozenset()
        self._remember()
        everything, subject = frozenset(self.units), self.subject
        try:
            self._hold_everything(everything)
            self._allow_for_spread()
            if self.trials.within(self.trials.errors[frozenset()]):
                return frozenset()
            if not self.trials.holds(everything):
                raise self._out_of_reach(everything) from subject.raised
            return self._searched()
        except BudgetSpent:
            self.stopped = "the budget ended the search: this is the best so far"
        except KeyboardInterrupt:
            self.stopped = "interrupted: this is the best so far"
        finally:
            self._write()
        best = self.trials.best(self.work)
        if best is None:
            raise ValueError(
                "the search was ended before it found anything within the tolerance; "
                "give it a larger budget"
            )
        return best

    def _out_of_reach(self, everything: frozenset[Unit]) -> ValueError:
        raised = self.subject.raised
        return ValueError(
            f"with every place in float32 the error is still {self.trials.known(everything):.2g}, "
            f"and the search may use {min(self.limit, self.trials.mean_limit):.2g}: no policy is "
            "in reach; allow a larger tolerance, or look for what is low by "
            f"itself{'' if raised is None else f' (run raised {type(raised).__name__})'}"
        )

    def _safe(self) -> bool:
        """Return whether the errors of the batches, with their spread, allow everything low."""
        errors = self.trials.errors[frozenset()]
        mean = math.fsum(errors) / len(errors)
        return mean * allowance(spread_of([errors]), len(errors)) <= self.tolerance

    def _allow_for_spread(self) -> None:
        """Tighten the limit where errors differ between batches.

        The spread is measured on fixed sets. A set that the search chose for its small error would
        make the spread look too small.
        """
        if len(self.batches) == 1 or math.isinf(self.all_low):
            return
        unchosen = [frozenset(), frozenset(self.units[::2]), frozenset(self.units[1::2])]
        for held in unchosen:
            self.trials.error(held)
        self.spread = spread_of(self.trials.errors[held] for held in unchosen)
        self.trials.mean_limit = self.tolerance / allowance(self.spread, len(self.batches))

    def _hold_everything(self, everything: frozenset[Unit]) -> None:
        """Run with everything held, and find the places that are low all the same."""
        if not self._may_run():
            raise BudgetSpent
        ran = trace()
        error = self.subject.error(self.subject.places, self.batches[0], self.references[0], ran)
        self.subject.learn_unnamed(ran)
        if not self.subject.unnamed and everything not in self.trials.errors:
            self.trials.errors[everything] = [error]

    def _searched(self) -> frozenset[Unit]:
        everything, base = frozenset(self.units), at_first(self.units, self.overflows, self.work)
        if self.effort == "halves":
            return halves(base, self.trials.holds)
        harm = {
            unit: math.inf if self.overflows(unit) else self.trials.first(everything - {unit})
            for unit in base
        }
        return ranked(by_harm(base, harm, self.work), self.trials.holds)

    def low(self, held: frozenset[Unit]) -> float:
        """Return the share of the work that is low with some units held."""
        return 1.0 - math.fsum(self.work[unit] for unit in held) / (
            math.fsum(self.work.values()) or 1.0
        )

    def overflows(self, unit: Unit) -> bool:
        """Return whether a result in the float32 runs exceeds the low dtype's largest number."""
        largest = PRECISIONS[self.subject.base.dtype].largest
        return any(self.subject.peak.get(place, 0.0) > largest for place in unit)

    def _run(self, held: frozenset[Unit], batch: int) -> float:
        error = self.subject.error(
            frozenset().union(*held), self.batches[batch], self.references[batch]
        )
        if self.subject.raised is not None:
            self.raised[held] = type(self.subject.raised).__name__
        return error

    def _may_run(self) -> bool:
        return bool(self.budget.left(self.subject.runs + (self.fresh is not None)))

    def _told(self, held: frozenset[Unit]) -> None:
        best = self.trials.best(self.work)
        best = frozenset(self.units) if best is None else best
        self.progress(Step(self.subject.runs, len(self.units), len(best), self.low(best)))
        self._write()

    def _memory(self) -> resuming.Memory:
        subject = self.subject
        numbers = {place: number for number, place in enumerate(subject.places)}
        by_norms = subject.measure is None
        setting = {
            "network": " ".join(subject.names.classes) or subject.title,
            "base": repr(subject.base),
            "by": self.by,
            "measure": "norms"
            if by_norms
            else getattr(subject.measure, "__qualname__", "the user's"),
        }
        return resuming.Memory(
            setting,
            tuple(subject.places),
            tuple(tuple(measuring.norms(each)) if by_norms else () for each in self.references),
            tuple(
                (frozenset(numbers[place] for unit in held for place in unit), tuple(errors))
                for held, errors in self.trials.errors.items()
            ),
        )

    def _remember(self) -> None:
        """Take over the trials of the file to resume from."""
        if self.resume is None or not os.path.exists(self.resume):
            return
        for numbers, errors in resuming.read(self.resume, self._memory()).tried:
            places = {self.subject.places[number] for number in numbers}
            self.trials.errors[frozenset(unit for unit in self.units if unit <= places)] = list(
                errors
            )

    def _write(self) -> None:
        if self.resume is not None:
            resuming.write(self.resume, self._memory())
