"""The geometry of the error plots.

For each dtype they show how far errors stay below their bounds, by network and framework.

The template only draws what is laid out here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unamp_conformance.report.evidence import ratio
from unamp_conformance.results import UNEXPECTED, FrameworkRun, Result

__all__ = ["Mark", "Panel", "Row", "Tick", "panels"]

#: Lengths in units of the drawing, which are pixels on a phone.
WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 84, 18, 10, 34
_LANE, _ROW_GAP = 10, 12

#: The room to the right of a mark beyond the bound, for its label.
_LABEL = 66

#: More networks than this make no picture: those nearest to their bounds stay.
_ROWS = 24

#: The axis goes down to a hundredth of the bound, and up as far as needed, but no further than a
#: thousand bounds.
_LOWEST, _HIGHEST = -2.0, 3.0


@dataclass(frozen=True)
class Tick:
    """A line of the axis."""

    x: float
    label: str
    bound: bool


@dataclass(frozen=True)
class Row:
    """A network's band, and the largest error of each series in it."""

    y: float
    height: float
    label: str
    largest: Mapping[int, float]


@dataclass(frozen=True)
class Mark:
    """A framework's errors on one network: a line from smallest to largest, and a mark at its end.

    Attributes:
        smallest, largest: where the line begins and ends.
        y: its height.
        series: the framework's number.
        status: ``"passed"``, or how the worst one beyond its bound was judged.
        label: how many bounds it is, where it is beyond one.
        title: everything in words.
    """

    smallest: float
    largest: float
    y: float
    series: int
    status: str
    label: str
    title: str


@dataclass(frozen=True)
class Panel:
    """One dtype's plot."""

    dtype: str
    height: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    compared: int
    left_out: int

    width = WIDTH
    left = _LEFT
    right = WIDTH - _RIGHT

    @property
    def bottom(self) -> float:
        """The place of the axis."""
        return self.height - _BOTTOM

    @property
    def bound(self) -> float:
        """The place of the bound."""
        return next(tick.x for tick in self.ticks if tick.bound)


def panels(runs: Sequence[FrameworkRun]) -> list[Panel]:
    """Return a plot for each dtype in which anything was compared with a reference.

    A run's place numbers its series.
    """
    found: dict[str, dict[str, dict[int, list[tuple[float, Result]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for series, run in enumerate(runs):
        for result in run.results:
            if (error := ratio(result)) is not None and result.check != "agreement":
                found[_precision(result)][result.subject][series].append((error, result))
    order = ("float32", "bfloat16", "float16")
    known = [dtype for dtype in order if dtype in found] + sorted(found.keys() - set(order))
    return [_panel(dtype, found[dtype], runs) for dtype in known]


def _precision(result: Result) -> str:
    """Return the dtype whose bound holds: O0 computes in float32, whatever dtype it names."""
    if said := result.details.get("precision"):
        return str(said)
    words = result.policy.split()
    return "float32" if words[:1] == ["O0"] else " ".join(words[1:2]) or "unknown"


def _panel(
    dtype: str,
    networks: dict[str, dict[int, list[tuple[float, Result]]]],
    runs: Sequence[FrameworkRun],
) -> Panel:
    worst = {
        name: max(error for errors in series.values() for error, _ in errors)
        for name, series in networks.items()
    }
    shown = set(sorted(worst, key=lambda name: -worst[name])[:_ROWS])
    axis = _Axis(worst.values())
    lanes = sorted({series for name in shown for series in networks[name]})
    rows, marks, y = [], [], float(_TOP)
    for name in (name for name in networks if name in shown):
        height = len(lanes) * _LANE + _ROW_GAP
        rows.append(
            Row(
                y,
                height,
                name,
                {s: max(error for error, _ in errors) for s, errors in networks[name].items()},
            )
        )
        for lane, series in enumerate(lanes):
            if errors := networks[name].get(series):
                marks.append(
                    _mark(
                        errors,
                        y + _ROW_GAP / 2 + (lane + 0.5) * _LANE,
                        series,
                        f"{name} on {runs[series].framework}",
                        axis,
                    )
                )
        y += height
    compared = sum(len(errors) for series in networks.values() for errors in series.values())
    return Panel(
        dtype,
        y + _BOTTOM,
        tuple(axis.ticks()),
        tuple(rows),
        tuple(marks),
        compared,
        len(networks) - len(shown),
    )


def _mark(
    errors: Iterable[tuple[float, Result]], y: float, series: int, what: str, axis: _Axis
) -> Mark:
    ordered = sorted(errors, key=lambda pair: pair[0])
    (smallest, _), (largest, worst) = ordered[0], ordered[-1]
    said = "not finite" if math.isinf(largest) else f"{largest:.3g} times the bound"
    title = (
        f"{what}: {len(ordered)} errors; the largest is {said} ({worst.check}, {worst.policy}, "
        f"{worst.status})"
    )
    label = (
        ""
        if largest <= 1.0
        else "not finite"
        if math.isinf(largest)
        else f"{largest:.2g}\N{MULTIPLICATION SIGN}"
    )
    status = "passed" if largest <= 1.0 else "failed" if worst.status in UNEXPECTED else "gap"
    return Mark(axis.x(smallest), axis.x(largest), y, series, status, label, title)


class _Axis:
    """Multiples of the bound, by their logarithm."""

    def __init__(self, errors: Iterable[float]) -> None:
        # An error that is not finite has its place at the end.
        largest = max(error if error < math.inf else 4.0 for error in errors)
        # Room beyond the bound even where no mark is there: the plot is to show that marks stay
        # below the bound.
        power = math.log10(largest) if largest > 0.0 else 0.0
        self._highest = min(max(power, 0.3), _HIGHEST)
        self._width = WIDTH - _LEFT - _RIGHT - (_LABEL if largest > 1.0 else 0)

    def x(self, multiple: float) -> float:
        power = math.log10(multiple) if multiple > 0.0 else _LOWEST
        share = (min(max(power, _LOWEST), self._highest) - _LOWEST) / (self._highest - _LOWEST)
        return round(_LEFT + share * self._width, 1)

    def ticks(self) -> Iterator[Tick]:
        labels = {
            -2: "1 %",
            -1: "10 %",
            0: "bound",
            1: "10\N{MULTIPLICATION SIGN}",
            2: "100\N{MULTIPLICATION SIGN}",
        }
        for power, label in (*labels.items(), (3, "1000\N{MULTIPLICATION SIGN}")):
            if power <= self._highest:
                yield Tick(self.x(10.0**power), label, power == 0)
