"""The measurement of one step: sums on the tensors' device, fetched together at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from unamp._grouping import grouped
from unamp.adapter import Adapter
from unamp.adapter.contract import NamesGradients
from unamp.adapter.framework_types import Tensor
from unamp.dtypes import LOW_DTYPES, FloatFormat
from unamp.watching.samples import LayerSample


class _Low(NamedTuple):
    """A low parameter before the step."""

    place: int
    parameter: Tensor
    before: Tensor
    moves: Tensor  # booleans: where the gradient is not zero


class _Counted(NamedTuple):
    """The counts of one parameter's gradient numbers, each of those below a limit."""

    zero: float = 0.0
    below_half: float = 0.0  # zeros, and numbers that round to zero in the low dtype
    below_normal: float = 0.0  # these, and numbers that are subnormal in it
    finite: float = 0.0


class Measurement:
    """The gradients of a step, and the changes of the low parameters in it.

    Args:
        adapter: the framework's adapter.
        gradients: the parameters with their gradients, as from `NamesGradients.named_gradients`.
        low: the low dtype whose underflow is counted.
        updates: whether the optimizer steps low parameters themselves, without master weights.
    """

    def __init__(
        self,
        adapter: Adapter,
        gradients: Sequence[tuple[str, Tensor, Tensor | None]],
        low: FloatFormat,
        *,
        updates: bool,
    ) -> None:
        assert isinstance(adapter, NamesGradients)
        self._adapter: Any = adapter
        self._names = [name for name, _, _ in gradients]
        self._sizes: list[int] = []
        self._totals: list[list[Tensor]] = []
        self._low: list[_Low] = []
        for place, (_, parameter, gradient) in enumerate(gradients):
            self._count(place, parameter, gradient, low, updates)

    def _count(
        self,
        place: int,
        parameter: Tensor,
        gradient: Tensor | None,
        low: FloatFormat,
        updates: bool,
    ) -> None:
        if gradient is None:
            self._sizes.append(math.prod(parameter.shape))
            self._totals.append([])
            return
        numbers = self._adapter.numbers(gradient)
        magnitudes = abs(numbers)
        # half of the smallest subnormal number rounds to even, which is zero
        limits = (low.smallest_subnormal / 2, low.smallest_normal, math.inf)
        counted = [
            magnitudes <= 0.0,
            magnitudes <= limits[0],
            magnitudes < limits[1],
            magnitudes < limits[2],
        ]
        self._sizes.append(math.prod(numbers.shape))
        self._totals.append([self._adapter.total(each) for each in counted])
        if updates and parameter is not None and self._adapter.dtype_of(parameter) in LOW_DTYPES:
            before = self._adapter.numbers(parameter)
            if tuple(before.shape) == tuple(numbers.shape):
                # sparse gradients have only some rows: they do not fit the parameter
                self._low.append(_Low(place, parameter, before, magnitudes > 0.0))

    def check_updated(self, parameters: Sequence[object]) -> None:
        """Check that the parameters after the step are as many as the gradients.

        Raises:
            ValueError: where they are not.
        """
        if len(parameters) != len(self._names):
            raise ValueError(
                f"there are {len(parameters)} parameters after the step, "
                f"and {len(self._names)} before it"
            )

    def layers(
        self, *, stepped: bool, updated: Sequence[Tensor] | None = None
    ) -> tuple[LayerSample, ...]:
        """Return the layers, after the step.

        Args:
            stepped: whether the optimizer took its step.
            updated: the parameters after the step, where they are values; None where the given
                parameters themselves have changed.
        """
        moved = self._moved(updated) if stepped else {}
        totals = [each for row in (*self._totals, *moved.values()) for each in row]
        numbers = iter(self._adapter.fetched(totals))
        counted = [_Counted(*(next(numbers) for _ in row)) if row else None for row in self._totals]
        steps = {place: [next(numbers) for _ in row] for place, row in moved.items()}
        layers = [name.rpartition(".")[0] or name for name in self._names]
        places = grouped(range(len(layers)), layers.__getitem__)
        return tuple(self._layer(name, inner, counted, steps) for name, inner in places.items())

    def _moved(self, updated: Sequence[Tensor] | None) -> dict[int, list[Tensor]]:
        """Return four sums over each low parameter's numbers.

        They are the count of numbers whose gradient is not zero, the count of these that did not
        change, the squares of the step, and the squares of the parameter.
        """
        found = {}
        for low in self._low:
            after = self._adapter.numbers(low.parameter if updated is None else updated[low.place])
            step = after - low.before
            rows = (low.moves, low.moves & (step == 0.0), step * step, low.before * low.before)
            found[low.place] = [self._adapter.total(each) for each in rows]
        return found

    def _layer(
        self,
        name: str,
        places: Sequence[int],
        counted: Sequence[_Counted | None],
        steps: dict[int, list[float]],
    ) -> LayerSample:
        size = sum(self._sizes[place] for place in places)
        there = [
            (self._sizes[place], found) for place in places if (found := counted[place]) is not None
        ]
        zero, below_half, below_normal = (
            math.fsum(found[n] for _, found in there) / max(size, 1) for n in range(3)
        )
        missing = sum(self._sizes[place] for place in places if counted[place] is None)
        wanted, stuck, square, own = (
            math.fsum(steps[place][n] for place in places if place in steps) for n in range(4)
        )
        return LayerSample(
            name,
            size,
            zero,
            below_normal - below_half,
            below_half - zero,
            sum(length - int(found.finite) for length, found in there),
            missing / max(size, 1),
            stuck / wanted if wanted else None,
            math.sqrt(square / own) if wanted and own else None,
        )
