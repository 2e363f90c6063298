"""Samples of a training: the numbers that the monitor keeps, without framework or tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unamp._grouping import grouped

#: A loss scale is a float32 number: it is less than this.
LIMIT = 2.0**128

#: The shares from which a finding names a layer: of gradients that are subnormal, and of updates
#: that rounding swallows.
_SUBNORMAL, _SWALLOWED = 0.1, 0.5


class LayerSample(NamedTuple):
    """The gradients of a layer's own parameters at one step, as the backward pass left them.

    They are scaled where the loss was scaled.

    Attributes:
        layer: the layer's name; for a parameter outside of layers, the parameter's name.
        size: the number of numbers in its parameters' gradients.
        zero: the share of numbers that is zero; 1 - `missing` at most.
        subnormal: the share that is subnormal in the low dtype.
        flushed: the share that is not zero, and would be zero in the low dtype; the gradient has a
            wider dtype.
        nonfinite: the number of infinities and NaN.
        missing: the share that belongs to parameters without a gradient.
        swallowed: of the low parameters' numbers whose gradient is not zero, the share that the
            step did not change. None where the optimizer stepped no low parameter itself.
        update: the norm of the step, relative to the norm of the low parameters; None likewise.
    """

    layer: str
    size: int
    zero: float
    subnormal: float
    flushed: float
    nonfinite: int = 0
    missing: float = 0.0
    swallowed: float | None = None
    update: float | None = None

    @property
    def dead(self) -> bool:
        """Return whether all gradients of its parameters are zero or missing."""
        return self.zero + self.missing >= 1.0


class Sample(NamedTuple):
    """One step that was measured.

    Attributes:
        step: the step's number; the first is 0.
        scale: the loss scale of the gradients.
        skipped: the number of skipped steps since the monitor was made, this one included.
        layers: the layers, in the network's order.
    """

    step: int
    scale: float
    skipped: int
    layers: tuple[LayerSample, ...]


class Contents(NamedTuple):
    """The contents of a history.

    Attributes:
        framework: the framework of the training.
        dtype: the low dtype whose underflow is counted.
        every: the number of steps for one sample.
        steps: the number of steps.
        skipped: the number of skipped steps.
        samples: the samples that are kept, the oldest first.
    """

    framework: str
    dtype: str
    every: int
    steps: int
    skipped: int
    samples: tuple[Sample, ...]


class LayerSummary(NamedTuple):
    """One layer over all samples that are kept.

    Attributes:
        layer, size: as in `LayerSample`.
        zero, subnormal, flushed, swallowed, update: the means over samples with finite gradients.
        nonfinite, dead, samples: the number of samples with a gradient that is not finite, of
            samples in which the layer was dead, and of all samples.
    """

    layer: str
    size: int
    zero: float
    subnormal: float
    flushed: float
    swallowed: float | None
    update: float | None
    nonfinite: int
    dead: int
    samples: int


def summarised(samples: Iterable[Sample]) -> list[LayerSummary]:
    """Return a summary of each layer over all samples, in the network's order."""
    layers = grouped(
        (each for sample in samples for each in sample.layers), lambda each: each.layer
    )
    return [_summary(name, each) for name, each in layers.items()]


def _summary(name: str, samples: Sequence[LayerSample]) -> LayerSummary:
    finite = [each for each in samples if not each.nonfinite] or samples
    shares = ((each.zero, each.subnormal, each.flushed) for each in finite)
    zero, subnormal, flushed = (_mean(each) or 0.0 for each in zip(*shares, strict=True))
    swallowed, update = (
        _mean(each)
        for each in zip(*((each.swallowed, each.update) for each in finite), strict=True)
    )
    return LayerSummary(
        name, samples[-1].size, zero, subnormal, flushed, swallowed, update,
        nonfinite=sum(1 for each in samples if each.nonfinite),
        dead=sum(1 for each in samples if each.dead), samples=len(samples),
    )  # fmt: skip


def _mean(numbers: Iterable[float | None]) -> float | None:
    known = [each for each in numbers if each is not None]
    return math.fsum(known) / len(known) if known else None


def findings(contents: Contents) -> list[str]:
    """Return a sentence for each layer with a fault."""
    found = []
    for each in summarised(contents.samples):
        if each.dead == each.samples:
            found.append(
                f"{each.layer}: dead, its gradients are all zero or missing (nothing reaches it, "
                "or all underflow)"
            )
        if each.subnormal >= _SUBNORMAL:
            found.append(
                f"{each.layer}: underflow, {each.subnormal:.0%} of its gradients are subnormal in "
                f"{contents.dtype}, and {each.zero:.0%} zero"
            )
        if each.swallowed is not None and each.swallowed >= _SWALLOWED:
            found.append(
                f"{each.layer}: rounding swallows {each.swallowed:.0%} of the updates of its low "
                "parameters"
            )
        if each.nonfinite == each.samples:
            found.append(
                f"{each.layer}: its gradients are infinite or NaN whenever they were looked at"
            )
    return found


def line(sample: Sample, dtype: str) -> str:
    """Return a sample as one line of text: the loss scale, and the worst layer of each kind."""
    said = [f"step {sample.step}", f"scale {sample.scale:g}", f"skipped {sample.skipped}"]
    if worst := max(sample.layers, key=lambda each: each.subnormal, default=None):
        said.append(f"subnormal in {dtype} {worst.subnormal:.1%} ({worst.layer})")
    if swallowed := [each for each in sample.layers if each.swallowed is not None]:
        worst = max(swallowed, key=lambda each: each.swallowed or 0.0)
        said.append(f"swallowed {worst.swallowed:.1%} ({worst.layer})")
    for what, layers in (
        ("dead", [each.layer for each in sample.layers if each.dead]),
        ("not finite", [each.layer for each in sample.layers if each.nonfinite]),
    ):
        if layers:
            said.append(
                f"{what}: {layers[0]}{f' and {len(layers) - 1} more' if layers[1:] else ''}"
            )
    return ", ".join(said)
