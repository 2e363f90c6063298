"""Samples for writers of others: TensorBoard's, a run of wandb's, whatever takes a line of text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from unamp.watching.samples import Sample, line


def sink(writer: Any, dtype: str) -> Callable[[Sample], None]:
    """Return the function that hands a sample to a writer.

    Args:
        writer: has ``add_scalar(tag, value, step)``, as TensorBoard's writers do, or ``log({tag:
            value}, step=step)``, as a run of wandb's does, or takes a line of text: a function as
            `print` is, or a `logging.Logger`.
        dtype: the low dtype that a line names.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(writer, logging.Logger):  # it has a method `log` of other arguments
        return lambda sample: writer.info("%s", line(sample, dtype))
    if callable(getattr(writer, "add_scalar", None)):

        def add(sample: Sample) -> None:
            for tag, value in _scalars(sample):
                writer.add_scalar(tag, value, sample.step)

        return add
    if callable(getattr(writer, "log", None)):
        return lambda sample: writer.log(dict(_scalars(sample)), step=sample.step)
    if callable(writer):
        return lambda sample: writer(line(sample, dtype))
    raise TypeError(
        f"to= takes what has add_scalar(tag, value, step) (TensorBoard), log({{...}}, step=) "
        "(wandb), a logger, or a function of one line of text, such as print; "
        f"not {type(writer).__name__}"
    )


def _scalars(sample: Sample) -> Iterator[tuple[str, float]]:
    yield "unamp/loss scale", sample.scale
    yield "unamp/skipped", sample.skipped
    yield "unamp/dead layers", sum(1 for layer in sample.layers if layer.dead)
    for layer in sample.layers:
        for what in ("zero", "subnormal", "swallowed", "update"):
            if (value := getattr(layer, what)) is not None:
                yield f"unamp/{what}/{layer.layer}", value
