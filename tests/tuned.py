"""The promises of `unamp.tune` on every framework.

Each framework's folder tests them on the same network, which has three bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import unamp
from unamp.tuning import Step

WIDTH = 16


class Tunable(NamedTuple):
    """A framework's network.

    Attributes:
        network: makes a network from `weights`. Its layers are `first` and `big` (linear), `norm`
            (over the last axis), `total` (the mean of all numbers, by a sum) and `soft` (a softmax
            by hand, which does not subtract the maximum). Called with `x` and `many` it returns
            ``norm(big(h)), total(many), soft(h + 12)``, where h is ``relu(first(x))``.
        tensor: makes a tensor from an array.
        trained: runs ``big(h)`` of a network on a batch. It returns the mean of the squares, and
            the gradients for `first` and `big` of that loss times a scale, divided by the scale.
    """

    network: Callable[[dict[str, np.ndarray]], Any]
    tensor: Callable[[np.ndarray], Any]
    trained: Callable[[Any, Sequence[Any], float], tuple[Any, list[Any]]]

    def batches(self, count: int, seed: int = 0) -> list[tuple[Any, Any]]:
        """Return inputs, the same in every framework."""
        random = np.random.default_rng(seed)
        drawn = [
            (random.standard_normal((4, WIDTH)), random.uniform(0.5, 1.5, 100_000))
            for _ in range(count)
        ]
        return [tuple(self.tensor(each.astype("float32")) for each in pair) for pair in drawn]  # type: ignore[misc]


def weights(overflow: float = 1e5) -> dict[str, np.ndarray]:
    """Return the weights of `first` and `big`, each (out, in), the same in every framework."""
    random = np.random.default_rng(7)
    drawn = {name: random.standard_normal((WIDTH, WIDTH)) / 4 for name in ("first", "big")}
    return {
        name: (array * (overflow if name == "big" else 1)).astype("float32")
        for name, array in drawn.items()
    }


def bugs_are_found_and_named(of: Tunable) -> None:
    """Check a product that overflows, a sum of 100,000 numbers, and an exp without its maximum."""
    network = of.network(weights())
    steps: list[Step] = []
    tuned = unamp.tune(lambda batch: network(*batch), network, of.batches(3), progress=steps.append)
    held = {(place.layer, place.op): place.why for place in tuned.report.held}
    for bug in (("big", "linear"), ("total", "sum"), ("soft", "exp")):
        assert held[bug].startswith("its result reaches ")
    assert {layer for layer, _ in held} == {"big", "norm", "total", "soft"}
    assert all(why for why in held.values())
    assert tuned.report.low > 0.1
    assert tuned.report.within
    assert tuned.report.held_out is not None
    assert tuned.report.framework
    assert tuned.report.runs < 60
    assert steps[-1].units == len(tuned.report.places)
    assert unamp.current_policy() is None


def a_tuned_file_holds_on_fresh_batches(of: Tunable) -> None:
    network = of.network(weights())
    text = unamp.tune(lambda batch: network(*batch), network, of.batches(3)).to_toml()
    assert beyond(of, text) == []


def beyond(of: Tunable, text: str, tolerance: float = 1e-2) -> list[float]:
    """Return a new network's errors beyond the tolerance, on new batches under a tuned file."""
    from unamp.tuning.measuring import results_of, worst_error

    network, found = of.network(weights()), unamp.Precision.from_toml(text)
    fresh = of.batches(20, seed=1)
    exact = [results_of(network(*batch)) for batch in fresh]
    with unamp.layer_policies(network, found.layers), unamp.policy_region(found.policy):
        low = [network(*batch) for batch in fresh]
    errors = [
        worst_error(reference, results_of(given))
        for reference, given in zip(exact, low, strict=True)
    ]
    return [error for error in errors if error > tolerance]


def training_needs_a_loss_scale(of: Tunable) -> None:
    """Check that gradients of a small loss underflow in float16.

    With a loss scale, less has to stay in float32.
    """
    network, batches = of.network(weights(1.0)), of.batches(2)

    def tune(scale: float) -> unamp.TuneReport:
        return unamp.tune(
            lambda batch: of.trained(network, batch, scale), network, batches, by="operation"
        ).report

    scaled, plain = tune(1.0), tune(2.0**-18)
    assert scaled.all_low < plain.all_low
    assert len(scaled.held) < len(plain.held)
    assert scaled.within


def the_answer_is_the_same_again(of: Tunable) -> None:
    network = of.network(weights())

    def tune() -> unamp.Tuned:
        return unamp.tune(lambda batch: network(*batch), network, of.batches(2), effort="ranked")

    one, other = tune(), tune()
    assert one.to_toml() == other.to_toml()
    assert one.report.tried == other.report.tried


def an_interrupted_search_gives_the_best_so_far_and_leaves_nothing(of: Tunable) -> None:
    network = of.network(weights())
    kinds = {type(layer) for layer in vars(network).values()}

    def interrupted(step: Step) -> None:
        if 0 < step.held < step.units:
            raise KeyboardInterrupt

    tuned = unamp.tune(lambda batch: network(*batch), network, of.batches(2), progress=interrupted)
    assert tuned.report.stopped.startswith("interrupted")
    assert tuned.report.error <= tuned.report.limit
    assert 0 < len(tuned.report.held) < len(tuned.report.places)
    assert unamp.current_policy() is None
    assert {type(layer) for layer in vars(network).values()} == kinds
    with tuned.region(network):
        assert unamp.current_policy() == tuned.policy


def two_runs_that_differ_are_an_error(of: Tunable) -> None:
    network, count = of.network(weights()), iter(range(1, 100))
    with pytest.raises(
        ValueError,
        match=r"two float32 runs of the same batch are \d\.\de[+-]\d\d apart.*run draws random",
    ):
        unamp.tune(lambda batch: network(batch[0] * next(count), batch[1]), network, of.batches(2))


PROMISES = (
    bugs_are_found_and_named,
    a_tuned_file_holds_on_fresh_batches,
    training_needs_a_loss_scale,
    the_answer_is_the_same_again,
    an_interrupted_search_gives_the_best_so_far_and_leaves_nothing,
    two_runs_that_differ_are_an_error,
)


@pytest.mark.parametrize("promise", PROMISES)
def test_promises(request: pytest.FixtureRequest, promise: Callable[[Tunable], None]) -> None:
    """Check one promise; the folder's module has the network as `OF`."""
    promise(request.module.OF)
