"""The defects that a thorough run notices, measured for a framework.

They are counted operation by operation and kind by kind.

``python -m unamp_conformance.meta.mutation torch --output mutants.json`` goes through a framework's
operations in an order that the seed draws, and saves its findings after each: after an interruption
the same command goes on. A mutant is noticed where a probe of a thorough run fails, and passes for
the adapter as it is. Where no probe fails, the results decide: a mutant with the same bits as the
adapter does not count. Networks and ways are left out, so a whole run may notice more.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from unamp.adapter import machine
from unamp.policy import Policy
from unamp.vocabulary import vocabulary
from unamp_conformance import gaps
from unamp_conformance.check.cases import cases
from unamp_conformance.check.opchecks import expected_precision
from unamp_conformance.check.probes import FEEDS, Probe
from unamp_conformance.meta.mutants import KINDS, Kind, MutableSubject
from unamp_conformance.results import Result
from unamp_conformance.run.plan import Item, Selection
from unamp_conformance.run.worker import perform, planned, probe_of
from unamp_conformance.subjects import Subject

__all__ = ["NOTICED", "SAME", "Bench", "candidates", "choose", "main", "own_lists", "telling"]

#: Verdicts: a probe fails; the mutant gives the adapter's own bits. Any other says why nothing was
#: noticed.
NOTICED, SAME = "noticed", "the same"
_LOW = "bfloat16"
_OWN_DTYPE = "its result has a dtype of its own, which low inputs do not change"


def own_lists(op: str) -> dict[str, Policy]:
    """Return the policies whose own lists name an operation, by their names in results."""
    return {
        f"allow {_LOW}": Policy("O1", _LOW, allow=(op,)),
        f"deny {_LOW}": Policy("O1", _LOW, deny=(op,)),
    }


def candidates(subject: Subject) -> list[str]:
    """Return the operations that a policy can change on this framework.

    Each has an input to cast, is no cast itself, and has no known gap.
    """
    known = (
        op
        for op in sorted(subject.operations.names())
        if op in cases() and vocabulary()[op].group != "cast"
    )
    possible = (op for op in known if not _excused(subject, op))
    return [op for op in possible if cases()[op].eligible(cases()[op].inputs(0))]


def _excused(subject: Subject, op: str) -> bool:
    asked = [("coverage", "-"), *(("probe", policy) for policy in own_lists(op))]
    results = [Result(check, op, policy, subject.device, "failed") for check, policy in asked]
    known = gaps.that_hold(
        subject.framework, subject.adapter.version(), machine.facts(subject.adapter)
    )
    return any(gap.covers(result) for gap in known for result in results)


def telling(ops: Sequence[str]) -> list[str]:
    """Return the operations whose numbers tell the precision.

    See ``insensitive`` in `unamp_conformance.check.cases`.
    """
    return [op for op in ops if not cases()[op].insensitive]


def choose(ops: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Choose `count` operations at random, from all groups of the vocabulary alike."""
    generator = np.random.default_rng(seed)
    groups: dict[str, list[str]] = {}
    for op in generator.permutation(sorted(ops)):
        groups.setdefault(vocabulary()[str(op)].group, []).append(str(op))
    return [op for row in zip_longest(*groups.values()) for op in row if op is not None][:count]


@dataclass
class Bench:
    """A framework's operations, with what a thorough run would look at.

    Args:
        subject: the framework.
    """

    subject: MutableSubject

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """The items of a thorough run, by operation."""
        return {
            item.subject: item
            for item in planned(self.subject, Selection())
            if item.kind == "operation"
        }

    def ops(self, seed: int) -> list[str]:
        """Return the operations that a policy can change, in an order that a seed draws.

        They are drawn from all groups alike.
        """
        found = candidates(self.subject)
        return choose(found, len(found), seed)

    def verdicts(self, op: str, kinds: Sequence[Kind]) -> Iterator[tuple[str, str]]:
        """Yield for each kind that an operation can have its name and the verdict."""
        item, honest = self.items[op], dict[str, bool]()
        probe, _ = probe_of(self.subject.operations, self.subject.device, op)
        if probe is None:
            return
        for kind in kinds:
            if kind.in_place and not hasattr(self.subject.operations, "assign"):
                continue
            concerned = {
                name: policy
                for name, policy in item.policies.items()
                if self._concerns(kind, probe, policy)
            }
            if concerned:
                yield kind.name, self._verdict(item, kind, concerned, honest, probe)

    def _concerns(self, kind: Kind, probe: Probe, policy: Policy) -> bool:
        op = probe.case.op
        if not kind.concerns(policy, rule := self.subject.rule(policy, op)) or rule is None:
            return False
        if probe.case.layer and op not in (*policy.allow, *policy.deny):
            return False
        if kind.backward and not (
            probe.case.backward and probe.case.differentiable(probe.case.inputs(0))
        ):
            return False
        possible = [
            feed for feed in kind.feeds if feed == "float32" or probe.castable > (feed == "mixed")
        ]
        return any(expected_precision(rule, feed, policy.dtype) for feed in possible)

    def _verdict(
        self,
        item: Item,
        kind: Kind,
        concerned: Mapping[str, Policy],
        honest: dict[str, bool],
        probe: Probe,
    ) -> str:
        for name in concerned:
            if name not in honest:
                honest[name] = self._passes(item, name)
            if honest[name]:
                with self.subject.mutant(item.subject, kind):
                    if not self._passes(item, name):
                        return NOTICED
        if all(self._same(probe, kind, policy) for policy in concerned.values()):
            return SAME
        if not all(honest[name] for name in concerned):
            return "a probe that could tell fails for the adapter as it is"
        return probe.case.insensitive or (
            _OWN_DTYPE if probe.case.own_dtype else "its numbers do not tell"
        )

    def _passes(self, item: Item, policy: str) -> bool:
        others = [name for name in item.policies if name != policy]
        found: list[Result] = perform(self.subject, item, without=others or ("-",))
        return all(result.status == "passed" for result in found)

    def _same(self, probe: Probe, kind: Kind, policy: Policy) -> bool:
        """Return whether the mutant's results are the adapter's own, to the bit."""
        rule = self.subject.rule(policy, probe.case.op)
        for feed in FEEDS:
            if rule is None or (feed != "float32" and probe.castable <= (feed == "mixed")):
                continue
            try:
                right = probe.determined(
                    region := partial(self.subject.region, policy), feed, policy.dtype
                )
            except Exception:
                continue
            with self.subject.mutant(probe.case.op, kind):
                wrong = probe.determined(region, feed, policy.dtype)
            if not all(_equal(*pair) for pair in zip(right, wrong, strict=True)):
                return False
        return True


def _equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second, equal_nan=first.dtype.kind == second.dtype.kind == "f")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a framework; the exit status is 0 where 99 % of what was measured was noticed."""
    parser = argparse.ArgumentParser(
        "python -m unamp_conformance.meta.mutation",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument("framework")
    parser.add_argument(
        "--kinds", nargs="+", default=["*"], help="names of kinds, with * as a wildcard"
    )
    parser.add_argument("--ops", type=int, help="how many operations to draw; all unless said")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, help="a JSON file to keep the verdicts in, and to go on from"
    )
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    kinds = [
        kind
        for name, kind in KINDS.items()
        if any(fnmatchcase(name, pattern) for pattern in given.kinds)
    ]
    if not kinds:
        parser.error(f"no kind fits; there are: {', '.join(KINDS)}")
    bench = Bench(MutableSubject(given.framework, "cpu"))
    ops, said = bench.ops(given.seed), {"seed": given.seed, "kinds": [kind.name for kind in kinds]}
    said |= {"version": bench.subject.adapter.version(), "operations": len(ops)}
    found = _kept(given.output, given.framework, said)
    for op in ops[: given.ops]:
        if op not in found["measured"]:
            for kind, verdict in bench.verdicts(op, kinds):
                _count(
                    found["verdicts"].setdefault(kind, {"noticed": 0, "same": 0, "missed": {}}),
                    op,
                    verdict,
                )
            found["measured"].append(op)
            _keep(given.output, given.framework, found)
    noticed, missed = _print(found)
    return int(noticed < 0.99 * (noticed + missed))


def _kept(file: Path | None, framework: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of an earlier run with the same settings, else empty ones."""
    kept = json.loads(file.read_text("utf-8")).get(framework, {}) if file and file.exists() else {}
    return (
        kept
        if all(kept.get(name) == value for name, value in said.items())
        else {**said, "measured": [], "verdicts": {}}
    )


def _keep(file: Path | None, framework: str, found: Mapping[str, Any]) -> None:
    if file:
        every = json.loads(file.read_text("utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**every, framework: found}, indent=1) + "\n", "utf-8")


def _count(counts: dict[str, Any], op: str, verdict: str) -> None:
    if verdict in (NOTICED, SAME):
        counts["noticed" if verdict == NOTICED else "same"] += 1
    else:
        counts["missed"][op] = verdict


def _print(found: Mapping[str, Any]) -> tuple[int, int]:
    """Print a line for each kind and for each miss; return how many were noticed, and missed."""
    noticed = missed = 0
    for kind, counts in found["verdicts"].items():
        print(
            f"{kind}: {counts['noticed']} noticed, {len(counts['missed'])} not, "
            f"{counts['same']} the same"
        )
        for op, why in counts["missed"].items():
            print(f"    {op}: {why}")
        noticed, missed = noticed + counts["noticed"], missed + len(counts["missed"])
    print(
        f"{noticed} of {noticed + missed} noticed, in {len(found['measured'])} of "
        f"{found['operations']} operations"
    )
    return noticed, missed
