"""The sections of the benchmark, each measured in a process of its own: none sees what another one installed."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import Effort, Standing, measure

__all__ = ["SECTIONS", "missing", "standings"]

_OPERATION, _STEP, _PROCESS = Effort(1500, 0.0003), Effort(150, 0.0), Effort(25, 0.0)
_LAYER = Effort(25, 0.0)  # half a second for a step
_QUICK, _FEWEST = 0.2, 5

#: Each with the function that makes its comparisons, and how long each of them is measured.
SECTIONS = {
    "regions": ("on_torch.regions:comparisons", _OPERATION),
    "regions-in-python": ("on_torch.regions:in_python", _OPERATION),
    "native": ("on_torch.operations:native", _OPERATION),
    "native-steps": ("on_torch.steps:native", _STEP),
    "custom": ("on_torch.operations:custom", _OPERATION),
    "custom-in-python": ("on_torch.operations:in_python", _OPERATION),
    "custom-steps": ("on_torch.steps:custom", _STEP),
    "o2-steps": ("on_torch.steps:o2", _STEP),
    "decorated-steps": ("on_torch.decorated:comparisons", Effort(300, 0.002)),
    "aftermath": ("on_torch.aftermath:comparisons", _OPERATION),
    "layers": ("on_torch.layers:comparisons", _OPERATION),
    "growth": ("on_torch.growth:comparisons", Effort(10, 0.0)),
    "scaling": ("on_torch.scaling:comparisons", _OPERATION),
    "import": ("starting:importing", _PROCESS),
    "first-region": ("starting:first_region", Effort(10, 0.0)),
    "paddle-regions": ("on_paddle.regions:comparisons", _OPERATION),
    "paddle-operations": ("on_paddle.operations:comparisons", _OPERATION),
    "paddle-steps": ("on_paddle.steps:comparisons", _LAYER),
    "paddle-decorated": ("on_paddle.decorated:comparisons", Effort(300, 0.002)),
    "paddle-aftermath": ("on_paddle.operations:aftermath", _OPERATION),
    "mindspore-regions": ("on_mindspore.regions:comparisons", _OPERATION),
    "mindspore-operations": ("on_mindspore.operations:comparisons", _OPERATION),
    "mindspore-steps": ("on_mindspore.steps:comparisons", _STEP),
    "mindspore-decorated": ("on_mindspore.decorated:comparisons", Effort(60, 0.0)),
    "mindspore-aftermath": ("on_mindspore.operations:aftermath", _OPERATION),
    "tensorflow-regions": ("on_tensorflow.regions:comparisons", _OPERATION),
    "tensorflow-operations": ("on_tensorflow.operations:comparisons", _OPERATION),
    "tensorflow-tracing": ("on_tensorflow.operations:tracing", _PROCESS),
    "tensorflow-steps": ("on_tensorflow.steps:comparisons", Effort(60, 0.0)),
    "tensorflow-decorated": ("on_tensorflow.decorated:comparisons", Effort(150, 0.0)),
    "tensorflow-aftermath": ("on_tensorflow.operations:aftermath", _OPERATION),
    "jax-regions": ("on_jax.regions:comparisons", _OPERATION),
    "jax-operations": ("on_jax.operations:comparisons", _OPERATION),
    "jax-tracing": ("on_jax.operations:tracing", _PROCESS),
    "jax-steps": ("on_jax.steps:comparisons", Effort(60, 0.0)),
    "jax-aftermath": ("on_jax.operations:aftermath", _OPERATION),
}


def missing(section: str) -> str | None:
    """The framework that a section needs and that is not installed."""
    framework = next((name for name in ("paddle", "mindspore", "tensorflow", "jax") if section.startswith(f"{name}-")), "torch")
    return None if section == "import" or find_spec(framework) else framework


def standings(section: str, quick: bool) -> Iterator[Standing]:
    """The section's comparisons, as they are measured."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, section, quick))
    process.start()
    theirs.close()
    try:
        while True:
            yield ours.recv()
    except EOFError:
        process.join()
    if process.exitcode:
        raise SystemExit(f"section {section!r} failed; see above")


def _run(connection: Any, section: str, quick: bool) -> None:
    place, effort = SECTIONS[section]
    module, make = place.split(":")
    rounds = min(effort.rounds, max(_FEWEST, round(effort.rounds * _QUICK))) if quick else effort.rounds
    for comparison in getattr(importlib.import_module(f"benchmarks.{module}"), make)():
        connection.send(measure(comparison, Effort(rounds, effort.seconds)))
