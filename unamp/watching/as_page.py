"""A training as one HTML page, without scripts: it works offline, in dark mode and on a phone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unamp._pages import environment
from unamp.watching.samples import Contents, LayerSample, LayerSummary, Sample, findings, summarised

#: The size and the margins of the drawing of the loss scale, in its own units.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640.0, 220.0, 56.0, 12.0, 14.0, 30.0

#: The most cells of a strip, for the width of a phone; a cell shows the worst of its samples.
_CELLS = 60


class _Cell(NamedTuple):
    """Consecutive samples, as one cell of a layer's strip."""

    x: int
    share: float
    kind: str
    said: str


class _Row(NamedTuple):
    """One layer over time."""

    summary: LayerSummary
    gradients: list[_Cell]
    swallowed: list[_Cell]


class _Plot(NamedTuple):
    """A diagram of the loss scale (y, in powers of two) over the steps, with the skipped steps."""

    line: str
    skipped: list[tuple[float, str]]
    steps: list[tuple[float, str]]
    scales: list[tuple[float, str]]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT
    bottom: float = _HEIGHT - _BOTTOM


def render(contents: Contents, title: str) -> str:
    """Return the page's HTML. All text of the history is escaped: a layer may have any name."""
    found = environment("a training's")
    found.filters.update(percent=_percent)
    buckets = _buckets(contents.samples)
    rows = _rows(contents.samples, buckets)
    return found.get_template("watch.html").render(
        title=title,
        watched=contents,
        findings=findings(contents),
        rows=rows,
        low=any(row.summary.swallowed is not None for row in rows),
        plot=_plot(contents.samples) if contents.samples else None,
        cells=len(buckets),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _buckets(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    count = min(len(samples), _CELLS)
    return [
        samples[n * len(samples) // count : (n + 1) * len(samples) // count] for n in range(count)
    ]


def _rows(samples: Sequence[Sample], buckets: Sequence[Sequence[Sample]]) -> list[_Row]:
    summaries = summarised(samples)
    by_name = [
        {each.layer: each for each in sample.layers} for bucket in buckets for sample in bucket
    ]
    found = []
    for summary in summaries:
        series = iter([each.get(summary.layer) for each in by_name])
        parts = [
            [(sample.step, each) for sample in bucket if (each := next(series)) is not None]
            for bucket in buckets
        ]
        gradients = _strip(parts, _share, _kind)
        swallowed = _strip(parts, lambda layer: layer.swallowed or 0.0, lambda layer: "lost")
        found.append(_Row(summary, gradients, swallowed))
    return found


def _share(layer: LayerSample) -> float:
    return 1.0 if layer.nonfinite or layer.dead else layer.subnormal


def _kind(layer: LayerSample) -> str:
    return "bad" if layer.nonfinite else "dead" if layer.dead else "lost"


def _strip(
    parts: Sequence[Sequence[tuple[int, LayerSample]]],
    share: Callable[[LayerSample], float],
    kind: Callable[[LayerSample], str],
) -> list[_Cell]:
    """Return the cells of a layer's strip; a cell without a share is left out."""
    cells = (_cell(x, part, share, kind) for x, part in enumerate(parts) if part)
    return [cell for cell in cells if cell.share > 0.0]


def _cell(
    x: int,
    part: Sequence[tuple[int, LayerSample]],
    share: Callable[[LayerSample], float],
    kind: Callable[[LayerSample], str],
) -> _Cell:
    step, worst = max(part, key=lambda pair: share(pair[1]))
    said = {"bad": "not finite", "dead": "dead"}.get(kind(worst)) or _percent(share(worst))
    return _Cell(x, share(worst), kind(worst), f"step {step}: {said}")


def _plot(samples: Sequence[Sample]) -> _Plot:
    powers = [math.log2(sample.scale) for sample in samples]
    low, high = math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1
    first, last = samples[0].step, max(samples[-1].step, samples[0].step + 1)

    def across(step: int) -> float:
        return round(_LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT), 1)

    def up(power: float) -> float:
        return round(
            _HEIGHT - _BOTTOM - (power - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1
        )

    line = " ".join(
        f"{across(sample.step)},{up(power)}" for sample, power in zip(samples, powers, strict=True)
    )
    before = (0, *(sample.skipped for sample in samples))
    skipped = [
        (across(sample.step), f"{sample.skipped - earlier} skipped up to step {sample.step}")
        for sample, earlier in zip(samples, before, strict=False)
        if sample.skipped > earlier
    ]
    grid = range(low, high + 1, max(1, (high - low) // 4))
    return _Plot(
        line,
        skipped,
        [(across(step), str(step)) for step in dict.fromkeys((first, (first + last) // 2, last))],
        [(up(power), f"{2.0**power:g}") for power in grid],
    )
