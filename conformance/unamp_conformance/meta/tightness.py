"""The tightness of networks' bounds, measured by honest and by spoilt runs.

A spoilt run computes in another dtype than it says.

``python -m unamp_conformance.meta.tightness torch`` prints how near honest runs come to their
bounds, and how many spoilt runs are noticed, by their numbers alone. Files of bounds with other
seeds (`check.draw_netbounds` draws them) are compared with the same runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.policy import Policy
from unamp.typing import Level
from unamp_conformance.check.netbounds import FILE, Drawn, Reference
from unamp_conformance.check.netruns import run
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.machine import host
from unamp_conformance.meta.mutation import pretending
from unamp_conformance.run.plan import Selection, items
from unamp_conformance.subjects import Subject

__all__ = ["KINDS", "Run", "computing", "honest", "ratios", "spoilt"]

Bounds = Mapping[str, Mapping[str, Drawn]]

_LEVELS: tuple[Level, ...] = ("OD", "O1", "O2", "O3")


class Run(NamedTuple):
    """A network's run under a policy: its precision and errors, or what the framework raised.

    The errors must be within the bounds of that precision.
    """

    network: str
    precision: str
    errors: Mapping[str, float]
    raised: str = ""


@dataclass(frozen=True)
class _Computing(Subject):
    """A framework whose regions are all of one policy, whatever is asked for."""

    real: Subject
    policy: Policy

    def region(self, policy: Policy) -> AbstractContextManager[object]:
        return self.real.region(self.policy)


def computing(subject: Subject, policy: Policy) -> Subject:
    """Return the framework with regions that are all of one policy, whatever is asked for."""
    return _Computing(subject.framework, subject.device, subject, policy)


def honest(subject: Subject, networks: Sequence[str] = tuple(NETWORKS)) -> Iterator[Run]:
    """Run networks under every policy of the suite."""
    for item in items(Selection(checks=("outputs",), networks=tuple(networks)), ()):
        for policy in item.policies.values():
            yield _run(
                subject,
                item.subject,
                policy,
                policy.dtype if subject.stated(policy).active else FLOAT32,
            )


def _low(other: str, asked: str) -> Callable[[Subject, str], Iterator[Run]]:
    def runs(subject: Subject, network: str) -> Iterator[Run]:
        for level in _LEVELS:
            yield _run(
                computing(subject, Policy(level, other)), network, Policy(level, asked), asked
            )

    return runs


def _mistaken(dtype: str) -> Callable[[Subject, str], Iterator[Run]]:
    def runs(subject: Subject, network: str) -> Iterator[Run]:
        for level in _LEVELS:
            yield _run(
                pretending(subject, "mistakes the dtype"), network, Policy(level, dtype), dtype
            )

    return runs


def _float32(dtype: str) -> Callable[[Subject, str], Iterator[Run]]:
    def runs(subject: Subject, network: str) -> Iterator[Run]:
        yield _run(computing(subject, Policy("O1", dtype)), network, Policy("O0"), FLOAT32)

    return runs


#: The kinds of spoilt runs, each as a function that runs one network in that way.
KINDS: Mapping[str, Callable[[Subject, str], Iterator[Run]]] = {
    "float16 that is bfloat16": _low("bfloat16", "float16"),
    "float16, each operation in bfloat16": _mistaken("float16"),
    **{f"float32 that is {dtype}": _float32(dtype) for dtype in LOW_DTYPES},
}


def spoilt(subject: Subject, kind: str, networks: Sequence[str] = tuple(NETWORKS)) -> Iterator[Run]:
    """Run networks, spoilt in one of `KINDS`."""
    for network in networks:
        yield from KINDS[kind](subject, network)


def _run(subject: Subject, network: str, policy: Policy, precision: str) -> Run:
    try:
        observed = run(
            NETWORKS[network],
            subject.operations,
            lambda: subject.region(policy),
            device=subject.device,
        )
    except Exception as error:  # what a framework's own AMP cannot do; the suite says which that is
        return Run(network, precision, {}, f"{type(error).__name__}: {error}")
    return Run(network, precision, _reference(network).errors(observed))


@cache
def _reference(network: str) -> Reference:
    return Reference(NETWORKS[network])


def ratios(found: Run, bounds: Bounds | None = None) -> dict[str, float]:
    """Return each of a run's errors over its bound, by default the suite's."""
    drawn = None if bounds is None else bounds[found.network]
    allowed = Reference(NETWORKS[found.network], drawn).bounds(found.precision)
    return {entry: error / allowed[entry] for entry, error in found.errors.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratios of errors to bounds.

    Returns:
        The exit status: 0 where every honest run is within its bounds, and every spoilt one is
            beyond.
    """
    parser = argparse.ArgumentParser(
        prog="python -m unamp_conformance.meta.tightness", description="Are the bounds any good?"
    )
    parser.add_argument("framework")
    parser.add_argument(
        "bounds",
        nargs="*",
        type=Path,
        default=[Path(str(FILE))],
        help="files of bounds; the suite's unless said",
    )
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    seeds: list[Bounds] = [json.loads(file.read_text("utf-8"))["networks"] for file in asked.bounds]
    subject = Subject(asked.framework, asked.device)
    machine = host()
    print(
        f"{subject.framework} {subject.adapter.version()}, {asked.device}; {machine['processor']}, "
        f"Python {machine['python']}"
    )
    held = _print_honest(list(honest(subject)), seeds)
    noticed = [_print_noticed(kind, list(spoilt(subject, kind)), seeds) for kind in KINDS]
    return int(not (held and all(noticed)))


def _print_honest(runs: Sequence[Run], seeds: Sequence[Bounds]) -> bool:
    raised = sum(bool(each.raised) for each in runs)
    print(
        f"{len(runs)} honest runs, {raised} raise; bounds of {len(seeds)} seeds. "
        "The largest error over its bound:"
    )
    crossed = 0
    for precision in (FLOAT32, *LOW_DTYPES):
        largest: dict[str, tuple[float, str]] = {}
        for found, bounds in product((each for each in runs if each.precision == precision), seeds):
            for entry, ratio in ratios(found, bounds).items():
                kind = entry.split()[0]
                largest[kind] = max(
                    largest.get(kind, (0.0, "")), (ratio, f"{found.network}, {entry}")
                )
                crossed += not ratio <= 1.0
        print(
            f"  {precision:9}",
            "; ".join(f"{kind} {ratio:.2f}" for kind, (ratio, _) in largest.items()),
            end="; ",
        )
        print("at", max(largest.values())[1])
    print(f"  beyond a bound: {crossed}")
    return not crossed


def _print_noticed(kind: str, runs: Sequence[Run], seeds: Sequence[Bounds]) -> bool:
    """Print the number of spoilt runs that are noticed, for the seed with the fewest."""
    told = [each for each in runs if not each.raised]
    farthest = [[max(ratios(found, bounds).values()) for found in told] for bounds in seeds]
    noticed = min(sum(ratio > 1.0 for ratio in each) for each in farthest)
    nearest = min(min(each) for each in farthest)
    raised = f", {len(runs) - len(told)} raise" if len(told) < len(runs) else ""
    print(
        f"{kind}: noticed in {noticed} of {len(told)} runs, the least at {nearest:.3g} times a "
        f"bound{raised}"
    )
    return noticed == len(told)


if __name__ == "__main__":
    sys.exit(main())
