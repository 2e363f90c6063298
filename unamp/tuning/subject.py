"""A network as a search runs it: in float32, or low with some places held in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from unamp.adapter import registry
from unamp.adapter.records import OpRecord
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.errors import AdapterError, BannedOperation, NotExpressible
from unamp.layers.applying import (
    LayerNames,
    late_network,
    layer_names,
    layer_policies,
    noting_layers,
)
from unamp.layers.rules import LayerRule, LayerRules
from unamp.policy import Policy
from unamp.regions import policy_region
from unamp.tracing import Trace, Work, share, trace
from unamp.tracing.work import summed, work_of
from unamp.tuning import measuring
from unamp.tuning.places import Place, low_places, place_of, places_to_be_low
from unamp.tuning.rules import policy_and_rules


@contextmanager
def in_force(network: object, policy: Policy, rules: Sequence[LayerRule]) -> Iterator[None]:
    """Put rules on a network and a policy in force; undo both at the end."""
    on_layers = layer_policies(network, LayerRules(rules)) if rules else nullcontext()
    with on_layers, policy_region(policy):
        yield


class Subject:
    """The function to run and its network, with the facts of the float32 runs.

    Args:
        run: runs one batch, and returns results.
        network: the network; None where no layer gets a rule.
        base: the policy where nothing is held.
        measure: a function that returns the error of two runs from their results; None: by norms.

    Attributes:
        amounts, peak: for every place of a float32 run, the work of all batches, and the largest
            magnitude of a result.
        places: the places that are low with nothing held, in order.
        work: each place's share of the work of all `places`.
        runs: the number of calls of `run`.
        raised: the exception of the last run under a policy; None where it returned.
    """

    def __init__(
        self,
        run: Callable[[Any], object],
        network: object,
        base: Policy,
        measure: Callable[[Any, Any], object] | None,
    ) -> None:
        self.run, self.network, self.base, self.measure = run, network, base, measure
        self.amounts: dict[Place, Work] = {}
        self.work: dict[Place, float] = {}
        self.peak: dict[Place, float] = {}
        self.places: list[Place] = []
        self.unnamed: frozenset[Place] = frozenset()
        self.runs = 0
        self.raised: Exception | None = None
        self.names = LayerNames((), {}, {})
        self._late = None if network is None else late_network(network)

    def exact(self, batch: object) -> tuple[Any, Trace]:
        """Return the results of a float32 run, and its trace."""
        self.runs += 1
        with (
            trace(values=True) as ran,
            nullcontext() if self._late is None else noting_layers(*self._late),
        ):
            given = self.run(batch)
        return self._kept(given), ran

    def learn_layers(self) -> None:
        """Find the network's layers; some frameworks build layers only in a first run."""
        if self._late is not None:
            self.names = LayerNames((), {name: name for name in self._late[0].layers}, {})
        elif self.network is not None:
            self.names = layer_names(self.network)

    def learn_work(self, ran: Trace) -> None:
        """Add the work and the largest magnitudes of a float32 run."""
        for record in ran.records:
            place = self.place(record)
            self.amounts[place] = summed([self.amounts.get(place, Work()), _widened_work(record)])
            if record.values is not None:
                self.peak[place] = max(self.peak.get(place, 0.0), record.values.max_abs)

    def learn_places(self, low: Trace, exact: Trace) -> None:
        """Add the places that were low in a run with nothing held.

        Where that run raised, the policy tells which further places of the float32 run are low.
        """
        found = low_places(low.records, self.base.dtype, self.names)
        if self.raised is not None:
            found += places_to_be_low(exact.records, self.base, self.names)
        self.places = list(dict.fromkeys([*self.places, *found]))
        whole = summed(self.amounts[place] for place in self.places if place in self.amounts)
        self.work = {place: share(amount, whole) for place, amount in self.amounts.items()}

    def place(self, record: OpRecord) -> Place:
        """Return the place where an operation ran."""
        return place_of(record, self.names)

    def rules(self, held: Collection[Place]) -> tuple[Policy, list[LayerRule]]:
        """Return the policy and the rules that hold some places in float32."""
        layers = (name for name, first in self.names.first.items() if name == first)
        return policy_and_rules(held, self.places, layers, self.base, self.unnamed)

    def learn_unnamed(self, ran: Trace) -> None:
        """Find the places that were low although every place was held by its operation's name."""
        found = low_places(ran.records, self.base.dtype, self.names)
        self.unnamed = frozenset(found) & frozenset(self.places)

    def error(
        self, held: Collection[Place], batch: object, reference: Any, ran: Trace | None = None
    ) -> float:
        """Run a batch with some places held, and return its error.

        Args:
            reference: the results that `exact` returned for the batch.
            ran: a trace to record the run in; None records nothing.
        """
        return self.error_under(*self.rules(held), batch, reference, ran)

    def error_under(
        self,
        policy: Policy,
        rules: Sequence[LayerRule],
        batch: object,
        reference: Any,
        ran: Trace | None = None,
    ) -> float:
        """Run a batch under a policy and rules, and return its error.

        The error is infinite where `run` raises, as some functions do at a NaN.
        """
        self.runs += 1
        self.raised = None
        with in_force(self.network, policy, rules), nullcontext() if ran is None else ran:
            try:
                given = self.run(batch)
            except (AdapterError, BannedOperation, NotExpressible):
                raise
            except Exception as error:
                self.raised = error
        if self.raised is not None:
            return math.inf
        return self.difference(reference, self._kept(given))

    def difference(self, reference: Any, other: Any) -> float:
        """Return the error between two runs' results, by the user's measure or by norms."""
        if self.measure is not None:
            return measuring.single_number(self.measure(reference, other))
        return measuring.worst_error(reference, other)

    def low_share(self, ran: Trace) -> float:
        """Return the share of a run's work that was low."""
        worked = [
            (record.computed_in == self.base.dtype, _widened_work(record))
            for record in ran.records
            if record.compute
        ]
        return share(
            summed(work for low, work in worked if low), summed(work for _, work in worked)
        )

    @property
    def title(self) -> str:
        """The network's class, or the name of a function; ``""`` without a network."""
        if self._late is not None:
            return self._late[0].name
        return self.names.classes[-1] if self.names.classes else ""

    def framework(self) -> str:
        """Return the network's framework; ``""`` without a network."""
        if self._late is not None:
            return self._late[1]
        owner = None if self.network is None else registry.owner(self.network, "network")
        return "" if owner is None else owner.framework

    def _kept(self, given: object) -> object:
        return given if self.measure is not None else measuring.results_of(given)


def _widened_work(record: OpRecord) -> Work:
    """Return an operation's work as if in float32, so that low and float32 runs are comparable.

    Work that is not known counts as none.
    """
    wide = record._replace(
        inputs=tuple(map(_wide, record.inputs)),
        compute=_wide(record.compute) if record.compute else None,
        output=_wide(record.output) if record.output else None,
    )
    return work_of(wide) or Work()


def _wide(dtype: str) -> str:
    return FLOAT32 if dtype in LOW_DTYPES else dtype
