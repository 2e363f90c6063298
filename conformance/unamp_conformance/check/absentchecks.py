"""Programs for an absent device, compared with the policy and with the CPU's programs.

They are judged by decisions, never by numbers. Every call of an operation is a place in the
program. A trace of the same function says what the adapter decided in each place, which the policy
must agree with; and there the program must compute in the dtypes that were decided.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import unamp
from unamp.adapter import Operations, OpRecord
from unamp.adapter.absent_devices import AbsentDevice, Computed, Programs
from unamp.dtypes import ELIGIBLE
from unamp.policy import Policy, Rule
from unamp.presets import PRESETS
from unamp_conformance.check.netchecks import Outcome, expected_dtype, misjudged
from unamp_conformance.check.networks import Functions, Lacking, Network
from unamp_conformance.subjects import Subject

__all__ = ["check_program", "misfit"]

#: The levels at which the default preset's programs are compared with `AbsentDevice.beside`.
_BESIDE = ("O1", "O2")


def check_program(subject: Subject, network: Network, policy: Policy) -> dict[str, Outcome]:
    """Read a network's programs under a policy, and compare them with it.

    Args:
        subject: the framework and the absent device.
        network: the network.
        policy: the policy.

    Returns:
        A message about the decisions, empty where nothing is wrong, and the observations.
    """
    device = subject.absent_devices[subject.device]
    traced, written = (
        _Run(network, subject.operations, device),
        _Run(network, subject.operations, device),
    )
    region = subject.region(policy)
    beside = [
        each for each in device.beside if policy.preset == PRESETS[0] and policy.level in _BESIDE
    ]
    others: list[tuple[str, Sequence[Computed]]] = []
    try:
        traced.trace(region)
        programs = written.read(region)
        for each in beside:
            found = _Run(network, subject.operations, each).read(subject.region_for(policy, each))
            others.append((each.name, found.there))
    except Exception:
        for each in (device, *beside):
            _readable(network, subject.operations, each)
        raise
    rules = {record.op: subject.rule(policy, record.op) for record in traced.records}
    complaints = [
        wrong[0]
        for record in traced.records
        if (wrong := misjudged(policy, rules[record.op], record))
    ]
    complaints += [
        f"not in the trace: {place}" for place in _untold(subject, policy, traced.places)
    ]
    complaints += [f"not in the program: {place}" for place in _unwritten(traced, written)]
    expected = {
        place: _Expected.of(policy, rules, records) for place, records in traced.places.items()
    }
    # not elementwise operations, which float32 parameters enter, too
    told = [computed for computed in programs.there if computed.kind != "elementwise"]
    if not told:
        complaints.append("nothing that computes was found in the program")
    complaints += _against_policy(told, expected)
    complaints += _against_cpu(programs)
    for name, program in others:
        judged = [computed for computed in program if computed.kind != "elementwise"]
        complaints += (f"{name}: {wrong}" for wrong in _against_policy(judged, expected))
        complaints += _differing(device.name, programs.there, name, program)
    return {"decisions": ("; ".join(dict.fromkeys(complaints)), {"trace": _table(told)})}


def _readable(network: Network, operations: Operations, device: AbsentDevice) -> None:
    """Raise Unreadable where a network has no program for a device even outside of all regions."""
    try:
        _Run(network, operations, device).read(nullcontext())
    except Lacking:
        raise
    except Exception as error:
        raise device.unreadable(error) from error


@dataclass
class _Run:
    """A function that calls a network's operations, each in a place of its own."""

    network: Network
    operations: Operations
    device: AbsentDevice
    records: list[OpRecord] = field(default_factory=list)
    places: dict[str, list[OpRecord]] = field(default_factory=dict)

    def read(self, region: AbstractContextManager[Any]) -> Programs:
        """Return the programs of the network's loss in a region."""
        programs: Programs = self._call(self.device.read, region)
        return programs

    def trace(self, region: AbstractContextManager[Any]) -> None:
        """Note the decisions in a region, in each place."""
        self._call(self.device.run or self.device.read, region, trace=True)

    def _call(
        self, call: Callable[..., Any], region: AbstractContextManager[Any], *, trace: bool = False
    ) -> Any:
        parameters, data, buffers = (
            self.network.parameters(),
            self.network.inputs(),
            self.network.statistics(),
        )

        def loss(leaves: Sequence[Any], others: Sequence[Any], statistics: Sequence[Any]) -> Any:
            given = {
                **dict(zip(parameters, leaves, strict=True)),
                **dict(zip(buffers, statistics, strict=True)),
            }
            rest = dict(zip(data, others, strict=True))
            with unamp.trace() if trace else nullcontext() as traced, region:
                functions = _Placed(
                    self.operations,
                    self.device,
                    lambda: traced.records if traced else (),
                    self.places,
                )
                value = self.network.loss(
                    functions, self.network.forward(functions, given, rest), rest
                )
            self.records.extend(traced.records if traced else ())
            return value

        return call(loss, [*parameters.values()], [*data.values()], [*buffers.values()])


class _Placed(Functions):
    """Operations as attributes, each call in a place that has its number and its name."""

    def __init__(
        self,
        operations: Operations,
        device: AbsentDevice,
        records: Callable[[], Sequence[OpRecord]],
        places: dict[str, list[OpRecord]],
    ) -> None:
        super().__init__(operations)
        self._device, self._records, self._places = device, records, places

    def __getattr__(self, op: str) -> Callable[..., Any]:
        function = super().__getattr__(op)

        def placed(*args: Any, **kw: Any) -> Any:
            before, name = len(self._records()), f"{len(self.called)} {op}"
            with self._device.place(name):
                result = function(*args, **kw)
            self._places[name] = list(self._records()[before:])
            return result

        return placed


@dataclass(frozen=True)
class _Expected:
    """The dtypes that the operations of a place compute in, and those that they are given."""

    computed: frozenset[str]
    given: frozenset[str]

    @classmethod
    def of(
        cls, policy: Policy, rules: Mapping[str, Rule | None], records: Iterable[OpRecord]
    ) -> _Expected:
        """Return the dtypes that a policy means for the operations that were called."""
        computed: set[str] = set()
        given: set[str] = set()
        for record in records:
            rule = rules[record.op]
            floating = {dtype for dtype in record.inputs if dtype in ELIGIBLE}
            given |= floating
            expected = None if rule is None else expected_dtype(policy, rule, record.inputs)
            own = set(ELIGIBLE) if rule is None else floating  # without a rule any dtype is right
            computed |= own if expected is None else {expected}
        return cls(frozenset(computed), frozenset(given))


def _untold(
    subject: Subject, policy: Policy, places: Mapping[str, list[OpRecord]]
) -> Iterator[str]:
    """Yield the places where the policy has a rule and nothing was decided."""
    for place, records in places.items():
        op = place.partition(" ")[2]
        if subject.rule(policy, op) not in (None, Rule.UNTOUCHED) and op not in {
            record.op for record in records
        }:
            yield place


def _unwritten(traced: _Run, written: _Run) -> list[str]:
    """Return the places that only one of two runs of the same function has."""
    return sorted(traced.places.keys() ^ written.places.keys())


def _against_policy(
    program: Iterable[Computed], expected: Mapping[str, _Expected]
) -> Iterator[str]:
    for computed in program:
        place = expected.get(computed.place)
        if place is None or not place.computed:
            continue
        # Gradients are summed in the dtype that an input had, and in float32 where a parameter
        # that stays float32 takes part.
        summed = computed.backward and computed.kind != "product"
        right = place.computed | place.given | {"float32"} if summed else place.computed
        if wrong := misfit(computed, right):
            way = "backward" if computed.backward else "forward"
            yield (
                f"{computed.place}, {way}: {computed.name} in {wrong}, "
                f"should be {' or '.join(sorted(right))}"
            )


def misfit(computed: Computed, right: frozenset[str]) -> str:
    """Return the dtype that an operation should not have; empty where it is right.

    A sum of low numbers, and what is made of it, may be in float32: frameworks do so. A product may
    not, nor a result.

    Args:
        computed: the operation.
        right: the dtypes that it may have.
    """
    wider = {"float64"} if "float32" in right else set()
    wrong = [dtype for dtype in computed.operands if dtype not in right | wider]
    widened = computed.kind not in ("product", "result") and right.issuperset(computed.entered)
    return "" if not wrong or (widened and {"float32", "float64"}.issuperset(wrong)) else wrong[0]


def _against_cpu(programs: Programs) -> Iterator[str]:
    if programs.cpu is None:
        return
    there, cpu = Counter(programs.there), Counter(programs.cpu)
    for computed, sides in ((c, (there[c], cpu[c])) for c in there | cpu if there[c] != cpu[c]):
        yield f"{_said(computed)}: {sides[0]} on the device, {sides[1]} on the CPU"


def _differing(
    what: str, some: Iterable[Computed], other: str, others: Iterable[Computed]
) -> Iterator[str]:
    """Yield the dtypes that only one of two programs computes in at a place.

    The names of their kernels make no difference.
    """
    here, there = (
        {_decided(computed) for computed in program if computed.kind != "result"}
        for program in (some, others)
    )
    yield from (f"{decided}, on {what} alone, not on {other}" for decided in sorted(here - there))
    yield from (f"{decided}, on {other} alone, not on {what}" for decided in sorted(there - here))


def _table(program: Iterable[Computed]) -> list[str]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for computed in program:
        found[computed.kind][_said(computed)] += 1
    return [f"{kind}: {said}" for kind in sorted(found) for said in found[kind]]


def _said(computed: Computed) -> str:
    return f"{_where(computed)}: {computed.name}, {_dtypes(computed)}"


def _decided(computed: Computed) -> str:
    return f"{_where(computed)}: {_dtypes(computed)}"


def _where(computed: Computed) -> str:
    return f"{computed.place}{', backward' * computed.backward}"


def _dtypes(computed: Computed) -> str:
    return f"{' '.join(computed.operands)} -> {' '.join(computed.results)}"
