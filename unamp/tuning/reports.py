"""The report of a search: every place, everything that was tried, and remarks on the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from unamp.policy import Policy
from unamp.tuning.trials import Trial


def plain(value: object) -> object:
    """Return a value as JSON can hold it; a number that is not finite is None."""
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
        share: its share of the work that could be low.
        held: whether it stays in float32.
        peak: the largest magnitude of its result in float32.
        why: why it stays in float32; empty where it does not.
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
        low: the share of the work that is low under it.
        error: its error; the first that is beyond the tolerance, where one is.
        holds: whether it is within the tolerance.
    """

    policy: Policy
    low: float
    error: float
    holds: bool


class TuneReport(NamedTuple):
    """How a search went.

    Attributes:
        network: the network's class; empty without one.
        framework: its framework.
        base: the policy that was begun with.
        by, effort: as they were asked for.
        tolerance: the largest error that is allowed.
        limit: the largest error that the search allowed itself: the tolerance times the margin.
        batches: how many batches it searched with.
        error: the error on those.
        held_out: the error on the held-out batch; None without one, or after an interruption.
        all_low: the error without any exception.
        spread: how much errors differ from batch to batch (their standard deviation, for their
            mean), which the search allowed for; 0 where it could not be seen.
        low: the share of the work that is low.
        places: every place that could be low, in the order in which they first run.
        tried: what was tried, in order.
        presets: policies that need no search.
        runs: how often the network ran in all.
        seconds: how long that took in all.
        stopped: why the search ended early; empty where it did not.
        remarks: sentences about the whole.
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
        """Return whether the batch that was held out is within the tolerance, too."""
        return self.error <= self.tolerance and (
            self.held_out is None or self.held_out <= self.tolerance
        )

    def lines(self) -> list[str]:
        """Return the summary of the whole."""
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
