"""Writers for samples: TensorBoard's, a run of wandb, a logger, or a function of one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from unamp.watching.samples import Sample, line


def sink(writer: Any, dtype: str) -> Callable[[Sample], None]:
    """Return the function that hands a sample to a writer.

    Args:
        writer: an object with ``add_scalar(tag, value, step)``, as TensorBoard's writers, or with
            ``log({tag: value}, step=step)``, as a run of wandb; or a `logging.Logger`, or a
            function of one line of text, as `print`.
        dtype: the low dtype that a line names.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(writer, logging.Logger):  # its method `log` takes other arguments
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
