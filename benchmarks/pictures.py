"""Pictures of results, as SVG: ratios to the baseline, growth on logarithmic axes, memory."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.measure import Standing
from benchmarks.results import Run

__all__ = ["growth", "is_growth", "memory", "ratios", "where", "write"]

_COLOURS = {"pass": "#2e7d32", "close": "#b26a00", "miss": "#c62828", "": "#607d8b"}
#: A picture is as wide as a phone shows it without small text: labels stand above their bars.
_WIDTH, _LEFT = 420, 12
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {height}" '
    'font-family="sans-serif" font-size="12" role="img">'
    '<title>{title}</title><rect width="{width}" height="{height}" fill="#fff"/>'
)


def is_growth(standing: Standing) -> bool:
    """Return whether a comparison is of one job in several sizes."""
    return standing.title.startswith("growth: ")


def write(folder: Path, run: Run) -> list[Path]:
    """Write the pictures of a run: ratios with a goal, each growth, each network's memory."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    compared: dict[str, list[Standing]] = {}
    for standing in run.standings:
        if standing.unit != "seconds":
            continue
        if is_growth(standing):
            pictures[_name(standing.title)] = growth(standing)
        elif any(outcome.goal for outcome in standing.outcomes):
            compared.setdefault(_subject(standing.title), []).append(standing)
    for subject, standings in compared.items():
        pictures[_name(f"ratios: {subject}")] = ratios(standings, where(run))
    networks: dict[str, list[Standing]] = {}
    for standing in run.standings:
        if standing.unit == "bytes":
            networks.setdefault(standing.title.partition(": ")[2], []).append(standing)
    for network, standings in networks.items():
        pictures[_name(f"memory: {network}")] = memory(network, standings, where(run))
    for name, picture in pictures.items():
        (folder / f"{name}.svg").write_text(picture + "\n", "utf-8")
    return [folder / f"{name}.svg" for name in pictures]


def where(run: Run) -> str:
    """Return the machine, the setting and the day of a run."""
    told = run.machine
    day = str(told.get("date", ""))[:10]
    setting = "" if run.setting == "as-it-is" else f"as {run.setting}"
    cores = f"{told['cpu_count']} cores" if "cpu_count" in told else ""
    return ", ".join(filter(None, (str(told.get("cpu_model_name", "")), cores, setting, day)))


def _subject(title: str) -> str:
    """Return the name of the picture of a comparison.

    Each framework has a picture for steps, and one for everything smaller than a step.
    """
    framework, colon, _ = title.partition(": ")
    return f"{framework if colon else 'torch'}{', steps' if ' step' in f' {title}' else ''}"


def _name(title: str) -> str:
    return title.lower().replace(": ", "-").replace(",", "").replace(" ", "-")


def ratios(standings: Sequence[Standing], told: str) -> str:
    """Return a picture of all contenders with a goal: the quartiles, the median, and the goal."""
    compared = [
        (s.title, asked)
        for s in standings
        if (asked := [o for o in s.outcomes[1:] if o.goal is not None])
    ]
    scale, most = 130, 3.0
    height = 62 + sum(13 * len(_wrapped(title)) + 8 + 28 * len(asked) for title, asked in compared)

    def x(ratio: float) -> float:
        return round(_LEFT + scale * min(ratio, most), 1)

    lines = [
        _HEAD.format(width=_WIDTH, height=height, title="Ratios to the baseline of each comparison")
    ]
    for ratio in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
        colour = "#90a4ae" if ratio == 1.0 else "#eceff1"
        lines.append(f'<path d="M{x(ratio)} 24V{height - 26}" stroke="{colour}"/>')
        lines.append(f'<text x="{x(ratio)}" y="18" text-anchor="middle">{ratio:g}x</text>')
    y = 26
    for title, asked in compared:
        y += 8
        for line in _wrapped(title):
            y += 13
            lines.append(
                f'<text x="{_LEFT}" y="{y}" font-weight="bold" font-size="11">{escape(line)}</text>'
            )
        for outcome in asked:
            colour, (first, third) = _COLOURS[outcome.verdict], outcome.quartiles
            said = escape(f"{outcome.name}: {outcome.ratio:.2f}x")
            lines.append(f'<text x="{_LEFT}" y="{y + 14}" font-size="11">{said}</text>')
            y += 28
            lines.append(
                f'<path d="M{x(first)} {y - 6}H{x(third)}" stroke="{colour}" stroke-width="4" '
                'stroke-opacity=".4"/>'
            )
            lines.append(f'<circle cx="{x(outcome.ratio)}" cy="{y - 6}" r="3.5" fill="{colour}"/>')
            lines.append(
                f'<path d="M{x(outcome.goal or 0)} {y - 12}v12" stroke="#37474f" '
                'stroke-dasharray="2"/>'
            )
    lines.append(f'<text x="{_LEFT}" y="{height - 8}" font-size="10">{escape(told)}</text>')
    return "\n".join([*lines, "</svg>"])


def memory(network: str, standings: Sequence[Standing], told: str) -> str:
    """Return a picture of peak memory, a bar for each way to train, with the ratio to float32."""
    longest = _WIDTH - 2 * _LEFT
    most = max(outcome.median for standing in standings for outcome in standing.outcomes)
    height = 50 + sum(26 + 32 * len(standing.outcomes) for standing in standings)
    lines = [
        _HEAD.format(
            width=_WIDTH, height=height, title=escape(f"Peak memory of training: {network}")
        )
    ]
    y = 0
    for standing in standings:
        y += 26
        framework = standing.title.partition(": ")[0].removeprefix("memory, ")
        lines.append(f'<text x="{_LEFT}" y="{y}" font-weight="bold">{escape(framework)}</text>')
        for number, outcome in enumerate(standing.outcomes):
            length = round(longest * outcome.median / most, 1)
            colour = "#1565c0" if outcome.name.startswith("unamp") else "#90a4ae"
            ratio = f", {outcome.ratio:.2f}x" if number else ""
            said = escape(f"{outcome.name}: {outcome.median / 1e6:.0f} MB{ratio}")
            lines.append(f'<text x="{_LEFT}" y="{y + 16}" font-size="11">{said}</text>')
            y += 32
            lines.append(
                f'<rect x="{_LEFT}" y="{y - 12}" width="{length}" height="10" fill="{colour}"/>'
            )
    lines.append(f'<text x="{_LEFT}" y="{height - 8}" font-size="10">{escape(told)}</text>')
    return "\n".join([*lines, "</svg>"])


def _wrapped(title: str) -> list[str]:
    return textwrap.wrap(title, 62)


def growth(standing: Standing) -> str:
    """Return a picture of seconds by size, on logarithmic axes.

    A line shows linear growth through the largest size.
    """
    points = [(float(outcome.name), outcome.median) for outcome in standing.outcomes]
    width, height, edge = _WIDTH, 300, 56
    (low_x, high_x), (low_y, high_y) = (
        _decades([point[axis] for point in points]) for axis in (0, 1)
    )

    def at(size: float, seconds: float) -> str:
        x = edge + (width - edge - 20) * (math.log10(size) - low_x) / (high_x - low_x)
        y = (
            height
            - edge
            + 16
            - (height - edge - 16) * (math.log10(seconds) - low_y) / (high_y - low_y)
        )
        return f"{x:.1f} {y:.1f}"

    lines = [_HEAD.format(width=width, height=height, title=escape(standing.title))]
    for power in range(low_x, high_x + 1):
        lines.append(
            f'<path d="M{at(10**power, 10**low_y)}L{at(10**power, 10**high_y)}" stroke="#eceff1"/>'
        )
        lines.append(_text(at(10**power, 10**low_y), f"{10**power:,}", 0, 16, "middle"))
    for power in range(low_y, high_y + 1):
        lines.append(
            f'<path d="M{at(10**low_x, 10**power)}L{at(10**high_x, 10**power)}" stroke="#eceff1"/>'
        )
        lines.append(_text(at(10**low_x, 10**power), _seconds(power), -6, 4, "end"))
    size, seconds = points[-1]
    start = max(10**low_x, size * 10**low_y / seconds)
    lines.append(
        f'<path d="M{at(start, seconds * start / size)}L{at(size, seconds)}" stroke="#b0bec5" '
        'stroke-dasharray="4"/>'
    )
    lines.append(
        f'<path d="M{"L".join(at(*point) for point in points)}" stroke="#1565c0" fill="none" '
        'stroke-width="2"/>'
    )
    for point in points:
        x, y = at(*point).split()
        lines.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#1565c0"/>')
    lines.append(
        f'<text x="{width / 2}" y="{height - 6}" '
        f'text-anchor="middle">{escape(standing.title[8:])}</text>'
    )
    return "\n".join([*lines, "</svg>"])


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _text(place: str, text: str, dx: int, dy: int, anchor: str) -> str:
    x, y = map(float, place.split())
    return (
        f'<text x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}" '
        f'font-size="10">{text}</text>'
    )


def _seconds(power: int) -> str:
    unit, least = next(
        (u, p) for u, p in (("s", 0), ("ms", -3), ("us", -6), ("ns", -9)) if power >= p
    )
    return f"{10 ** (power - least)} {unit}"
