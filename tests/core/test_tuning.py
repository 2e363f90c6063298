"""The search of `unamp.tune` finds what it must, on made-up errors, without a framework."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from elsewhere import python
from hostile import cut, spoilt
from hypothesis import given
from hypothesis import strategies as st

from unamp import LayerRule, OpRecord, Policy, Rule
from unamp.layers.applying import LayerNames
from unamp.tuning import resuming
from unamp.tuning.places import BY, Place, low_places, units_of
from unamp.tuning.progress import Step, showing
from unamp.tuning.rules import policy_and_rules
from unamp.tuning.search_order import by_harm, halves, ranked
from unamp.tuning.trials import Budget, BudgetSpent, Trials, allowance, budget_of, spread_of

LOW = Policy("O3", "float16")


class Oracle(NamedTuple):
    """A network of numbered places.

    Each low place adds an error of its own, as independent roundings do.

    Attributes:
        harm: the error of each place; infinite where it overflows.
        work: the work of each place.
        batches: the factor by which each batch multiplies errors.
        limit: the largest error that is allowed.
    """

    harm: list[float]
    work: list[int]
    batches: list[float]
    limit: float

    @property
    def everything(self) -> frozenset[int]:
        return frozenset(range(len(self.harm)))

    def error(self, held: frozenset[int], batch: int) -> float:
        return self.batches[batch] * math.sqrt(
            sum(self.harm[place] ** 2 for place in self.everything - held)
        )

    def trials(self, budget: Budget | None = None) -> Trials[int]:
        used = itertools.count()
        end = budget or Budget()
        return Trials(self.error, len(self.batches), self.limit, lambda: end.left(next(used)))

    def low(self, held: frozenset[int]) -> int:
        return sum(self.work[place] for place in self.everything - held)

    def search(self, effort: str, trials: Trials[int]) -> frozenset[int]:
        order = sorted(
            self.everything, key=lambda place: (self.harm[place] == math.inf, -self.work[place])
        )
        if effort == "halves":
            return halves(order, trials.holds)
        harm = {place: trials.first(self.everything - {place}) for place in order}
        return ranked(by_harm(order, harm, dict(enumerate(self.work))), trials.holds)

    def most(self) -> int:
        """Return the most work that can be low, by trying all subsets."""
        sets = (
            frozenset(held)
            for n in range(len(self.harm) + 1)
            for held in itertools.combinations(range(len(self.harm)), n)
        )
        return max(
            self.low(held)
            for held in sets
            if all(self.error(held, batch) <= self.limit for batch in range(len(self.batches)))
        )


@st.composite
def oracles(draw: st.DrawFn, most: int = 40, bugs: bool = False) -> Oracle:
    """Draw networks.

    With `bugs` some places overflow and the others are harmless, as in most users' networks.
    """
    count = draw(st.integers(1, most))
    harms = (
        st.sampled_from([0.0, 1e-4, math.inf])
        if bugs
        else st.one_of(st.floats(1e-6, 1.0), st.just(math.inf))
    )
    harm = draw(st.lists(harms, min_size=count, max_size=count))
    work = draw(st.lists(st.integers(1, 100), min_size=count, max_size=count))
    factors = draw(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
    return Oracle(harm, work, factors, 0.1 if bugs else draw(st.floats(1e-3, 2.0)))


EFFORTS = pytest.mark.parametrize("effort", ["halves", "ranked"])


@EFFORTS
@given(oracle=oracles())
def test_a_result_holds_and_no_exception_of_it_can_go(effort: str, oracle: Oracle) -> None:
    held = oracle.search(effort, oracle.trials())
    batches = range(len(oracle.batches))
    assert all(oracle.error(held, batch) <= oracle.limit for batch in batches)
    for place in held:
        assert any(oracle.error(held - {place}, batch) > oracle.limit for batch in batches)


@EFFORTS
@given(oracle=oracles())
def test_a_search_is_deterministic(effort: str, oracle: Oracle) -> None:
    one, other = oracle.trials(), oracle.trials()
    assert oracle.search(effort, one) == oracle.search(effort, other)
    assert list(one.errors.items()) == list(other.errors.items())


@EFFORTS
@given(oracle=oracles(most=9, bugs=True))
def test_bugs_alone_are_found_and_nothing_else(effort: str, oracle: Oracle) -> None:
    held = oracle.search(effort, oracle.trials())
    assert held == {place for place in oracle.everything if oracle.harm[place] == math.inf}
    assert oracle.low(held) == oracle.most()


@given(oracle=oracles(most=9))
def test_a_ranked_search_gives_up_no_more_than_its_largest_places(oracle: Oracle) -> None:
    """The search fills a knapsack by harm for work, so it falls short by less than one place.

    A rounding that decides can cost one place more.
    """
    held = oracle.search("ranked", oracle.trials())
    assert oracle.low(held) >= oracle.most() - 2 * max(oracle.work)


@EFFORTS
@given(oracle=oracles(), runs=st.integers(0, 60))
def test_a_budget_is_kept_and_the_best_so_far_holds(effort: str, oracle: Oracle, runs: int) -> None:
    trials = oracle.trials(Budget(runs=runs))
    try:
        oracle.search(effort, trials)
    except BudgetSpent:
        assert sum(map(len, trials.errors.values())) == runs
    assert sum(map(len, trials.errors.values())) <= runs
    best = trials.best(dict(enumerate(oracle.work)))
    if best is not None:
        assert all(
            oracle.error(best, batch) <= oracle.limit for batch in range(len(oracle.batches))
        )


@EFFORTS
@given(oracle=oracles(most=12), runs=st.integers(0, 30))
def test_a_search_that_goes_on_runs_nothing_twice(effort: str, oracle: Oracle, runs: int) -> None:
    first, whole = oracle.trials(Budget(runs=runs)), oracle.trials()
    expected = oracle.search(effort, whole)
    with contextlib.suppress(BudgetSpent):
        oracle.search(effort, first)
    second = oracle.trials()
    second.errors |= {held: list(errors) for held, errors in first.errors.items()}
    assert oracle.search(effort, second) == expected
    assert second.errors == whole.errors


def test_halves_takes_few_runs_for_few_exceptions() -> None:
    oracle = Oracle(
        [math.inf if place in (100, 700) else 0.0 for place in range(1000)],
        [1] * 1000,
        [1.0, 1.0, 1.0],
        0.1,
    )
    trials = oracle.trials()
    assert oracle.search("halves", trials) == {100, 700}
    assert sum(map(len, trials.errors.values())) < 100


def test_the_first_batch_beyond_the_limit_ends_a_trial() -> None:
    oracle = Oracle([1.0, 0.01], [1, 1], [1.0, 1.0, 1.0], 0.1)
    trials = oracle.trials()
    assert not trials.holds(frozenset())
    assert trials.errors == {frozenset(): [pytest.approx(1.0, rel=1e-3)]}
    assert trials.holds(frozenset({0}))
    assert trials.known(frozenset({0})) == pytest.approx(0.01)
    assert trials.known(frozenset({1})) is None
    # asked for the error, the other batches are run too
    assert trials.error(frozenset()) == pytest.approx(1.0, rel=1e-3)
    assert [len(errors) for errors in trials.errors.values()] == [3, 3]


def test_errors_that_differ_between_batches_leave_less_to_a_search() -> None:
    assert spread_of([[1.0, 1.0], [2.0, 2.0, 2.0]]) == 0.0
    assert spread_of([[1.0, 3.0]]) == pytest.approx(0.5 * math.sqrt(2.0))
    # relative, over all units together
    assert spread_of([[1.0, 3.0], [10.0, 30.0]]) == pytest.approx(0.5 * math.sqrt(2.0))
    assert spread_of([[math.inf, 1.0], [0.0, 0.0], [1.0]]) == 0.0  # nothing can be told
    assert allowance(0.0, 3) == 1.0
    assert allowance(0.2, 3) > allowance(0.2, 12) > 1.0 + 1.65 * 0.2


def test_the_mean_of_all_batches_has_a_limit_of_its_own() -> None:
    oracle = Oracle([0.09], [1], [1.0, 0.5, 0.5], 0.1)
    trials = oracle.trials()
    assert trials.holds(frozenset())
    trials.mean_limit = 0.05
    assert not trials.holds(frozenset())
    assert trials.best({0: 1.0}) is None


@pytest.mark.parametrize(("scatter", "batches"), [(0.05, 3), (0.2, 5), (0.4, 8)])
def test_what_is_found_holds_on_batches_that_nobody_saw(scatter: float, batches: int) -> None:
    """Errors differ by chance for every set and batch, as roundings do.

    The errors that a search has seen may be the lucky ones.
    """
    within = []
    for seed in range(20):
        chance = random.Random(seed)
        oracle = Oracle(
            [chance.random() for _ in range(30)],
            [chance.randint(1, 100) for _ in range(30)],
            [1.0],
            1.5,
        )

        def scattered(
            held: frozenset[int], batch: int, oracle: Oracle = oracle, seed: int = seed
        ) -> float:
            return oracle.error(held, 0) * max(
                random.Random(f"{seed} {sorted(held)} {batch}").gauss(1.0, scatter), 0.1
            )

        trials: Trials[int] = Trials(scattered, batches, 0.8 * oracle.limit)
        trials.mean_limit = oracle.limit / allowance(scatter, batches)
        held = oracle.search("halves", trials)
        assert held
        within += [scattered(held, batch) <= oracle.limit for batch in range(100, 150)]
    assert sum(within) / len(within) >= 0.95


def test_progress_is_a_function_or_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(runs=34, units=61, held=4, low=0.91)
    steps: list[Step] = []
    with showing(steps.append) as told:
        told(step)
    assert steps == [step]
    for quiet in (None, False):  # standard error is no terminal here
        with showing(quiet) as told:
            told(step)
    assert capsys.readouterr().err == ""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)  # as if it were not installed
    with showing(True) as told:
        told(step)
    assert (
        capsys.readouterr().err
        == "\r34 runs; best so far: 4 of 61 in float32, 91.0% of the work low\n"
    )


# --- places and rules -----------------------------------------------------------------------------

LAYERS = ("a", "a.x", "a.y", "b", "b.x")
OPS = ("add", "exp", "linear")


@st.composite
def held_places(draw: st.DrawFn) -> tuple[list[Place], frozenset[Place]]:
    every = [Place(layer, op) for layer in ("", *LAYERS) for op in OPS]
    places = draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    return places, frozenset(draw(st.lists(st.sampled_from(places), unique=True)))


def _denied(layer: str, policy: Policy, rules: list[LayerRule]) -> Policy | str:
    """Return the policy of the innermost rule around a layer."""
    by_name = {rule.pattern: rule.policy for rule in rules}
    while layer:
        if layer in by_name:
            return by_name[layer]
        layer = layer.rpartition(".")[0]
    return policy


@given(
    held_places(),
    st.sampled_from([LOW, Policy("O2", "bfloat16", deny="softmax"), Policy("O3", allow="exp")]),
)
def test_rules_hold_what_is_held_and_nothing_else(
    drawn: tuple[list[Place], frozenset[Place]], base: Policy
) -> None:
    places, held = drawn
    policy, rules = policy_and_rules(held, places, LAYERS, base)
    for place in places:
        there = _denied(place.layer, policy, rules)
        is_held = there == "float32" or (
            isinstance(there, Policy) and there.decide(place.op) is Rule.FP32
        )
        assert is_held == (place in held or base.decide(place.op) is Rule.FP32), place
    assert set(base.deny) <= set(policy.deny)


def test_rules_are_few() -> None:
    places = [
        Place("a", "linear"),
        Place("b", "linear"),
        Place("b", "exp"),
        Place("b.x", "exp"),
        Place("", "add"),
    ]
    deny = policy_and_rules({Place("b", "exp"), Place("b.x", "exp")}, places, LAYERS, LOW)
    assert deny == (LOW.replace(deny="exp"), [])  # in every layer: no rule for a layer is needed
    policy, rules = policy_and_rules({Place("a", "linear")}, places, LAYERS, LOW)
    assert (policy, rules) == (LOW, [LayerRule("a", "float32")])
    _, rules = policy_and_rules({Place("b", "exp")}, places, LAYERS, LOW)
    assert rules == [LayerRule("b", LOW.replace(deny="exp")), LayerRule("b.x", LOW)]


def test_what_its_name_does_not_hold_is_held_by_its_layer() -> None:
    """A layer may run under another name than the operation that it calls.

    Keras' embedding, for example, calls `take`.
    """
    places = [Place("a", "take"), Place("b", "linear"), Place("b", "take")]
    policy, rules = policy_and_rules(places, places, LAYERS, LOW, unnamed=[Place("a", "take")])
    assert policy == LOW.replace(deny="linear")
    assert rules == [LayerRule("a", "float32"), LayerRule("b", "float32")]
    assert policy_and_rules([], places, LAYERS, LOW, unnamed=[Place("a", "take")]) == (LOW, [])


def test_places_are_held_alone_or_together() -> None:
    places = [Place("a", "exp"), Place("b", "exp"), Place("a", "add")]
    assert [len(units_of(places, by)) for by in BY] == [3, 2, 2]
    assert units_of(places, "layer") == [
        {Place("a", "exp"), Place("a", "add")},
        {Place("b", "exp")},
    ]


def test_a_place_is_a_layer_of_the_network_and_an_operation() -> None:
    def ran(
        layer: str | None, op: str, rule: Rule = Rule.LOW, compute: str = "float16"
    ) -> OpRecord:
        return OpRecord(op, op, rule, ("float32",), compute, compute, layer=layer)

    names = LayerNames(("Net", "Wrapper"), {"a": "a", "b": "a", "c": "c"}, {})
    records = [
        ran("Net.b", "exp"),  # another name of the same layer
        ran("Net.a", "exp"),
        ran("Net.gone", "exp"),
        ran("Loss.a", "add"),  # a layer of another network
        ran(None, "add"),
        ran("Wrapper.module.c", "add"),
        ran("Net.c", "mul", compute="float32"),
        ran("Net.c", "argmax", Rule.UNTOUCHED),
    ]
    found = low_places(records, "float16", names)
    assert found == [Place("a", "exp"), Place("", "exp"), Place("", "add"), Place("c", "add")]
    assert str(found[0]) == "exp in a"
    emulated = ran("Net.c", "add", compute="float32")._replace(
        emulated=True, output="float16", values=None
    )
    assert low_places([emulated], "float16", names) == [Place("c", "add")]


# --- what a person says ---------------------------------------------------------------------------


def test_a_budget_is_runs_or_a_time() -> None:
    assert [budget_of(said).left(199) for said in (None, 200, "200", 199)] == [
        True,
        True,
        True,
        False,
    ]
    assert [
        budget_of(said).left(10**9) for said in ("90s", "10 min", "1.5h", timedelta(minutes=1))
    ] == [True] * 4


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (0, "must be above 0, not 0"),
        ("0s", "must be above 0"),
        ("soon", "'soon' is none; say a number of runs"),
        ("1.5", "must be a number of runs, a time"),
        (True, "must be a number of runs, a time"),
        (1.5, "must be a number of runs, a time"),
    ],
)
def test_a_bad_budget(said: object, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        budget_of(said)


# --- the file of a search -------------------------------------------------------------------------

MEMORY = resuming.Memory(
    {"by": "place"},
    (Place("a", "exp"), Place("", "add")),
    ((1.5, 2.0), (3.0,)),
    ((frozenset(), (math.inf,)), (frozenset({0, 1}), (0.5, 0.25))),
)


def test_a_search_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "search.json"
    resuming.write(file, MEMORY)
    assert resuming.read(file, MEMORY) == MEMORY
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (MEMORY._replace(setting={"by": "layer"}), "its by is place, and now layer"),
        (MEMORY._replace(places=MEMORY.places[:1]), "the network runs other operations now"),
        (MEMORY._replace(results=((1.5, 2.0),)), "it has other batches"),
        (MEMORY._replace(results=((1.5, 2.1), (3.0,))), "the weights or the batches have changed"),
    ],
)
def test_another_search_is_refused(now: resuming.Memory, says: str, tmp_path: Path) -> None:
    file = tmp_path / "search.json"
    resuming.write(file, MEMORY)
    with pytest.raises(ValueError, match=f"search.json: this is another search: .*{says}"):
        resuming.read(file, now)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searches") / "search.json"


@given(data=st.data())
def test_a_spoilt_file_is_read_or_refused_in_words(data: st.DataObject, file: Path) -> None:
    resuming.write(file, MEMORY)
    sound = json.loads(file.read_text())
    file.write_text(data.draw(cut(json.dumps(data.draw(spoilt(sound))))), "utf-8")
    refused, found = "", MEMORY
    try:
        found = resuming.read(file, MEMORY)
    except ValueError as error:
        refused = str(error)
    assert not refused or "search.json: this is " in refused
    assert found.places == MEMORY.places
    assert all(held <= {0, 1} and 0 < len(errors) <= 2 for held, errors in found.tried)


def test_what_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="it is no UTF-8"):
        resuming.read(file, MEMORY)


def test_importing_unamp_leaves_the_tuner_alone() -> None:
    code = (
        "import sys, unamp; "
        "print(*(name for name in sys.modules if name.startswith('unamp.tuning')))"
    )
    assert python("-c", code).strip() == ""
