"""A network in float64, and the errors that a precision may cause, on any machine.

docs/conformance.md derives the bound.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib import resources

import numpy as np

from unamp.dtypes import PRECISIONS
from unamp_conformance.check.netruns import NetworkRun, run
from unamp_conformance.check.networks import Network
from unamp_conformance.check.reference.operations import NumpyOperations
from unamp_conformance.check.reference.tape import Array

__all__ = ["DRAWS", "FILE", "FIRST", "Drawn", "Reference", "relative_error"]

#: The number of runs with random roundings on which a bound rests. One more run lies beyond all of
#: them with a probability of 1 / (DRAWS + 1).
DRAWS = 2048

#: The factor by which a run may lie beyond the farthest draw: operations round inside, too.
_MARGIN = 1.5
#: A further factor in float32: the order of sums depends on the machine, and exp and tanh on its
#: library (docs/conformance.md has the numbers). Low precisions do both in float32, where the
#: differences do not show.
_IN_FLOAT32 = 64.0

#: The file of the draws: for every network, precision and entry of `Reference.errors` the largest
#: of the first `FIRST` draws (few enough to be drawn again as a check), and of all.
FILE = resources.files("unamp_conformance").joinpath("data", "drawn_errors.json")
FIRST = 16

Drawn = dict[str, tuple[float, float]]


def relative_error(observed: Array, exact: Array, scale: float = 0.0) -> float:
    """Return the error's norm over the exact value's.

    A positive ``scale`` keeps exact values that are nearly zero from counting.
    """
    return _norm(observed - exact) / (_norm(exact) + scale or 1.0)


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


class Roundings:
    """Random roundings of relative size u, as a `Change` of every result and every cotangent.

    Half of a change is alike for all numbers of an array: equal numbers are rounded alike, and in a
    sum that does not average out.
    """

    def __init__(self, generator: np.random.Generator, u: float) -> None:
        self._generator, self._u = generator, u

    def __call__(self, array: Array) -> Array:
        """Return the array, rounded at random."""
        alike, each = (
            self._generator.uniform(-1.0, 1.0),
            self._generator.uniform(-1.0, 1.0, array.shape),
        )
        changed: Array = array * (1.0 + self._u * (alike + each) / np.sqrt(2.0))
        return changed


class Reference:
    """A network in float64, and the errors that a precision may cause, on any framework.

    Args:
        network: the network.
        drawn: the results of `draw` for each precision; None reads them from `FILE`.
    """

    def __init__(self, network: Network, drawn: Mapping[str, Drawn] | None = None) -> None:
        self.network = network
        self._drawn = drawn

    @cached_property
    def exact(self) -> NetworkRun:
        """The float64 run."""
        return run(self.network, NumpyOperations(), dtype="float64")

    @cached_property
    def _biased(self) -> NetworkRun:
        """The float64 run with running variances divided by n, not by n - 1.

        Some frameworks divide by n.
        """
        return run(self.network, NumpyOperations(unbiased=False), dtype="float64")

    def errors(self, observed: NetworkRun) -> dict[str, float]:
        """Return the relative error of output, loss, buffers and every gradient."""
        exact = self.exact
        # The error of a gradient that is tiny beside the others (a bias before a batch norm has
        # none at all) is taken relative to their size.
        whole = np.sqrt(sum(_norm(g) ** 2 for g in exact.gradients.values()) / len(exact.gradients))
        found = {
            "output": relative_error(observed.output, exact.output),
            "loss": relative_error(observed.loss, exact.loss),
        }
        for n, seen in observed.buffers.items():
            found[f"buffer {n}"] = min(
                relative_error(seen, known.buffers[n]) for known in (exact, self._biased)
            )
        found |= {
            f"gradient of {n}": relative_error(
                observed.gradients.get(n, np.zeros_like(g)), g, 0.1 * whole
            )
            for n, g in exact.gradients.items()
        }
        return found

    def bounds(self, precision: str) -> dict[str, float]:
        """Return the bounds that a precision allows, for every entry of `errors`."""
        drawn = _kept()[self.network.name] if self._drawn is None else self._drawn
        factor = _MARGIN * (1.0 if PRECISIONS[precision].low else _IN_FLOAT32)
        return {entry: factor * farthest for entry, (_, farthest) in drawn[precision].items()}

    def draws(self, precision: str, seed: int = 0) -> Iterator[dict[str, float]]:
        """Yield without end the `errors` of float64 runs with random roundings.

        Every rounding of the precision is drawn at random.
        """
        stream = zlib.crc32(f"{self.network.name}/{precision}".encode())
        roundings = Roundings(
            np.random.default_rng([stream, seed]), PRECISIONS[precision].unit_roundoff
        )
        while True:
            yield self.errors(run(self.network, NumpyOperations(roundings), dtype="float64"))

    def draw(self, precision: str, seed: int = 0, count: int = DRAWS) -> Drawn:
        """Return the largest of the first `FIRST` draws, and of all, per entry of `errors`."""
        found = [
            errors for errors, _ in zip(self.draws(precision, seed), range(count), strict=False)
        ]
        return {
            entry: (max(e[entry] for e in found[:FIRST]), max(e[entry] for e in found))
            for entry in found[0]
        }


@cache
def _kept() -> Mapping[str, Mapping[str, Drawn]]:
    kept: Mapping[str, Mapping[str, Drawn]] = json.loads(FILE.read_text("utf-8"))["networks"]
    return kept
