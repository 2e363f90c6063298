"""The report of a search: every place, every trial, and remarks on the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from unamp.policy import Policy
from unamp.tuning.trials import Trial


def plain(value: object) -> object:
    """Return a value as plain data for JSON; a number that is not finite becomes None."""
    if isinstance(value, Policy):
        return value.to_data()
    if isinstance(value, tuple):
        return (
            plain(value._asdict()) if hasattr(value, "_asdict") else [plain(each) for each in value]
        )
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class PlaceReport(NamedTuple):
    """A place of the network.

    Attributes:
        layer: the layer's name; ``""`` outside of named layers.
        op: the operation.
        share: the place's share of the work that could be low.
        held: whether the place stays in float32.
        peak: the largest magnitude of its result in float32.
        why: the reason why it stays in float32; empty where it does not.
    """

    layer: str
    op: str
    share: float
    held: bool
    peak: float
    why: str = ""


class PresetReport(NamedTuple):
    """A policy that needs no search.

    Attributes:
        policy: the policy.
        low: the share of the work that is low under the policy.
        error: the largest error, or the first one beyond the tolerance.
        holds: whether the error is within the tolerance.
    """

    policy: Policy
    low: float
    error: float
    holds: bool


class TuneReport(NamedTuple):
    """The course and the outcome of a search.

    Attributes:
        network: the network's class; empty without a network.
        framework: the network's framework.
        base: the policy at the start.
        by, effort: the arguments of `unamp.tune`.
        tolerance: the largest error that is allowed.
        limit: the largest error that the search itself allowed: the tolerance times the margin.
        batches: the number of batches of the search.
        error: the error on these batches.
        held_out: the error on the held-out batch; None without one, or after an interruption.
        all_low: the error with everything low.
        spread: the standard deviation of errors from batch to batch, relative to their mean. The
            search allowed for it; 0 where it could not be measured.
        low: the share of the work that is low.
        places: every place that could be low, in the order in which they first run.
        tried: the trials, in order.
        presets: policies that need no search.
        runs: the number of runs of the network in all.
        seconds: the time of the search in all.
        stopped: the reason why the search ended early; empty where it did not.
        remarks: sentences about the whole search.
    """

    network: str
    framework: str
    base: Policy
    by: str
    effort: str
    tolerance: float
    limit: float
    batches: int
    error: float
    held_out: float | None
    all_low: float
    spread: float
    low: float
    places: tuple[PlaceReport, ...]
    tried: tuple[Trial, ...]
    presets: tuple[PresetReport, ...]
    runs: int
    seconds: float
    stopped: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def held(self) -> tuple[PlaceReport, ...]:
        """The places that stay in float32."""
        return tuple(place for place in self.places if place.held)

    @property
    def within(self) -> bool:
        """Return whether the error on the held-out batch is within the tolerance, too."""
        return self.error <= self.tolerance and (
            self.held_out is None or self.held_out <= self.tolerance
        )

    def lines(self) -> list[str]:
        """Return the summary of the search, as lines of text."""
        dtype, within = self.base.dtype, f"of {self.tolerance:.2g} allowed"
        fresh = (
            "no batch was held out"
            if self.held_out is None
            else f"{self.held_out:.2g} on a batch that was held out"
        )
        name = f"{self.network}: " if self.network else ""
        held = f"{len(self.held)} of {len(self.places)} places stay in float32"
        batches = f"{self.batches} batch{'es' if self.batches > 1 else ''}"
        spread = (
            [f"errors differ by {self.spread:.0%} between batches, which was allowed for"]
            if self.spread >= 0.1
            else []
        )
        return [
            f"{name}{self.low:.1%} of the work in {dtype}; {held}",
            (
                f"error {self.error:.2g} {within} on {batches}, {fresh}; "
                f"everything in {dtype}: {self.all_low:.2g}"
            ),
            f"{self.runs} runs, {self.seconds:.1f} s{f'; {self.stopped}' if self.stopped else ''}",
            *spread,
            *self.remarks,
        ]
