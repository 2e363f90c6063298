"""A search as one HTML page, without scripts: it works offline, in dark mode and on a phone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from unamp._grouping import grouped
from unamp._pages import environment
from unamp.tuning.reports import PlaceReport, TuneReport

#: The size and the margins of the drawing, in its own units.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640.0, 280.0, 56.0, 12.0, 22.0, 40.0


class _Layer(NamedTuple):
    name: str
    share: float
    held: float
    places: list[PlaceReport]


class _Dot(NamedTuple):
    """A set of held units that was tried, as a point of the drawing."""

    x: float
    y: float
    kind: str
    said: str


class _Drawing(NamedTuple):
    """A diagram of all trials: the share of the work that is low (x) and the error (y)."""

    dots: list[_Dot]
    limit: float
    shares: list[tuple[float, str]]
    errors: list[tuple[float, str]]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT
    bottom: float = _HEIGHT - _BOTTOM


def render(report: TuneReport, toml: str, title: str) -> str:
    """Return the page's HTML. All text of the report is escaped: a layer may have any name."""
    found = environment("a search's")
    found.filters.update(percent=_percent, error=_error)
    return found.get_template("tune.html").render(
        title=title,
        report=report,
        toml=toml,
        layers=_layers(report.places),
        drawing=_drawing(report),
    )


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _error(error: float) -> str:
    return "not finite" if math.isinf(error) else f"{error:.2g}"


def _layers(places: Iterable[PlaceReport]) -> list[_Layer]:
    """Return the layers in the order in which they first ran an operation."""
    return [
        _Layer(
            layer,
            math.fsum(p.share for p in inner),
            math.fsum(p.share for p in inner if p.held),
            inner,
        )
        for layer, inner in grouped(places, lambda place: place.layer).items()
    ]


def _drawing(report: TuneReport) -> _Drawing:
    finite = [trial.error for trial in report.tried if 0 < trial.error < math.inf]
    decades = [math.log10(error) for error in [*finite, report.limit]]
    low, high = math.floor(min(decades)), max(math.ceil(max(decades)), math.floor(min(decades)) + 1)
    top, bottom, left, right = _TOP, _HEIGHT - _BOTTOM, _LEFT, _WIDTH - _RIGHT

    def up(error: float) -> float:
        if error == math.inf:
            return top - 10
        decade = min(max(math.log10(error), low), high) if error > 0 else low
        return round(bottom - (bottom - top) * (decade - low) / (high - low), 1)

    def along(share: float) -> float:
        return round(left + (right - left) * share, 1)

    dots = [
        _Dot(
            along(trial.low), up(trial.error), "holds" if trial.holds else "beyond",
            f"{n}: {trial.held} in float32, {_percent(trial.low)} low, error {_error(trial.error)}",
        )
        for n, trial in enumerate(report.tried, 1)
    ]  # fmt: skip
    step = max(1, (high - low) // 5)
    errors = [(up(10.0**decade), f"1e{decade:+03d}") for decade in range(low, high + 1, step)]
    shares = [(along(n / 4), f"{n * 25}%") for n in range(5)]
    return _Drawing(dots, up(report.limit), shares, errors)
