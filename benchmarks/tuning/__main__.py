"""Tune networks of one framework, and print a table: ``python -m benchmarks.tuning torch``.

``torch --small`` holds the searches against all subsets of networks of up to 11 places, ``torch
--facts`` compares them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unamp
from benchmarks.tuning.subject import Subject
from unamp.tuning.measuring import results_of, worst_error
from unamp.tuning.places import units_of
from unamp.tuning.subject import Subject as Searched
from unamp.tuning.trials import Trials

DTYPES = ("float16", "bfloat16")
FRESH = 60
HEAD = (
    "network",
    "dtype",
    "places",
    "all low",
    "tolerance",
    "search",
    "low",
    "in float32",
    "runs",
    "seconds",
    "fresh within",
)


def main() -> None:
    """Read the arguments, and print a row for each search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=("torch", "paddle", "mindspore", "tensorflow"))
    parser.add_argument(
        "--small", action="store_true", help="hold the searches against all subsets"
    )
    parser.add_argument("--facts", action="store_true", help="the networks of the first comparison")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=unamp.AmpWarning)
    module = importlib.import_module(f"benchmarks.tuning.on_{asked.framework}")
    subjects = (
        module.small() if asked.small else module.facts() if asked.facts else module.networks()
    )
    rows = []
    for row in _rows(subjects, small=asked.small, few=asked.facts):
        if not rows:
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row), flush=True)
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
        rows.append(row)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


def _rows(subjects: Iterator[Subject], *, small: bool, few: bool) -> Iterator[dict[str, Any]]:
    for subject in subjects:
        batches = 3 if few else subject.batches
        for dtype in DTYPES:
            tolerance = subject.tolerance.get(dtype) or _half_of_all_low(subject, dtype, batches)
            if small:
                yield from _beside_all_subsets(subject, dtype, tolerance)
                continue
            for effort, by in (("halves", "place"), ("ranked", "place"), ("halves", "operation")):
                yield _row(subject, dtype, tolerance, effort, by, batches)


def _half_of_all_low(subject: Subject, dtype: str, batches: int) -> float:
    """Return half of the error with everything low, rounded to one digit.

    With this tolerance some places have to stay in float32.
    """
    errors = []
    for seed in range(batches):
        batch = subject.batch(seed)
        exact = results_of(subject.run(batch))
        with unamp.policy_region(unamp.Policy("O3", dtype)):
            low = subject.run(batch)
        errors.append(worst_error(exact, results_of(low)))
    return 1e-2 if math.isinf(max(errors)) else float(f"{max(errors) / 2:.0e}")


def _row(
    subject: Subject, dtype: str, tolerance: float, effort: str, by: str, count: int
) -> dict[str, Any]:
    batches = [subject.batch(seed) for seed in range(count)]
    began = time.perf_counter()
    tuned = unamp.tune(
        subject.run,
        subject.network,
        batches,
        held_out=subject.batch(count),
        dtype=dtype,
        tolerance=tolerance,
        effort=effort,
        by=by,
    )
    seconds = time.perf_counter() - began
    report = tuned.report
    within = 0
    for seed in range(100, 100 + FRESH):
        batch = subject.batch(seed)
        exact = results_of(subject.run(batch))
        with tuned.region(subject.network):
            low = subject.run(batch)
        within += worst_error(exact, results_of(low)) <= tolerance
    ops: dict[str, int] = {}
    for place in report.held:
        ops[place.op] = ops.get(place.op, 0) + 1
    kept = ", ".join(
        f"{op} {count}" if by == "place" else op
        for op, count in sorted(ops.items(), key=lambda item: -item[1])
    )
    values = (
        subject.name, dtype, len(report.places), f"{report.all_low:.1e}", f"{tolerance:.0e}",
        effort if by == "place" else "by operation", f"{report.low:.1%}", kept or "nothing",
        report.runs, f"{seconds:.1f}",
        f"{within} of {FRESH}",
    )  # fmt: skip
    return dict(zip(HEAD, values, strict=True))


def _beside_all_subsets(subject: Subject, dtype: str, tolerance: float) -> Iterator[dict[str, Any]]:
    """Compare the searches with the best of all subsets, on one batch, with the full tolerance."""
    batch = subject.batch(0)
    best, places, runs, all_low = _best_of_all(subject, dtype, tolerance, batch)
    for effort in ("halves", "ranked"):
        tuned = unamp.tune(
            subject.run,
            subject.network,
            [batch],
            dtype=dtype,
            tolerance=tolerance,
            effort=effort,
            margin=1.0,
        )
        held = sum(place.share for place in tuned.report.held)
        tried = sum(1 for trial in tuned.report.tried if 0 < trial.held < places)
        values = (
            subject.name,
            dtype,
            places,
            f"{all_low:.1e}",
            f"{tolerance:.0e}",
            effort,
            f"{1 - held:.1%}",
            f"{best:.1%}",
            tried,
            runs,
        )
        head = (
            "network",
            "dtype",
            "places",
            "all low",
            "tolerance",
            "search",
            "low",
            "best of all",
            "sets tried",
            "all subsets",
        )
        yield dict(zip(head, values, strict=True))


def _best_of_all(
    subject: Subject, dtype: str, tolerance: float, batch: Any
) -> tuple[float, int, int, float]:
    """Return the largest low share of the work of all subsets of places within the tolerance.

    Also return the numbers of places and of subsets, and the error with everything low.
    """
    searched = Searched(subject.run, subject.network, unamp.Policy("O3", dtype), None)
    reference, ran = searched.exact(batch)
    searched.learn_layers()
    searched.learn_work(ran)
    low = unamp.trace()
    all_low = searched.error((), batch, reference, low)
    searched.learn_places(low, ran)
    units = units_of(searched.places, "place")
    work = {unit: sum(searched.work[place] for place in unit) for unit in units}
    trials = Trials(
        lambda held, n: searched.error(frozenset().union(*held), batch, reference), 1, tolerance
    )
    sets = [
        frozenset(held) for n in range(len(units) + 1) for held in itertools.combinations(units, n)
    ]
    sets.sort(key=lambda held: sum(work[unit] for unit in held))
    best = next(held for held in sets if trials.holds(held))
    share = 1 - sum(work[unit] for unit in best) / sum(work.values())
    return share, len(units), len(sets), all_low


if __name__ == "__main__":
    sys.exit(main())
