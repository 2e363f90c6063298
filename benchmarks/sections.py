"""The sections of the benchmark. Each is measured in a process of its own.

So no section is affected by the patches of another one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from importlib.util import find_spec
from typing import Any, NamedTuple

from benchmarks.measure import Effort, Standing, measure

__all__ = ["SECTIONS", "Section", "framework_of", "missing", "standings"]


class Section(NamedTuple):
    """A section.

    Attributes:
        place: the function that makes the section's comparisons, as module:function.
        effort: the extent of each measurement.
        variables: environment variables of the section's process.
        ending: the end of its titles, where another section has the same comparisons.
        quick: whether a quick run of all sections includes it.
    """

    place: str
    effort: Effort
    variables: Mapping[str, str] = {}
    ending: str = ""
    quick: bool = True


_OPERATION, _STEP, _PROCESS = Effort(1500, 0.0003), Effort(150, 0.0), Effort(25, 0.0)
_OPTIMIZER = Effort(300, 0.002)
_MEMORY = Effort(3, 0.0)  # memory hardly varies
_LAYER = Effort(25, 0.0)  # a step takes half a second
_QUICK, _FEWEST = 0.2, 3

_IN_PYTHON: Mapping[str, str] = {"UNAMP_TORCH_COMPILED": "0"}
_PYTHON = ", kernels in Python"

SECTIONS = {
    "regions": Section("on_torch.regions:comparisons", _OPERATION),
    "regions-python": Section(
        "on_torch.regions:in_python", _OPERATION, variables=_IN_PYTHON, ending=_PYTHON
    ),
    "native": Section("on_torch.operations:native", _OPERATION),
    "native-steps": Section("on_torch.steps:native", _STEP),
    "custom": Section("on_torch.operations:custom", _OPERATION),
    "custom-python": Section(
        "on_torch.operations:custom", _OPERATION, variables=_IN_PYTHON, ending=_PYTHON, quick=False
    ),
    "changed-python": Section(
        "on_torch.operations:in_python", _OPERATION, variables=_IN_PYTHON, ending=_PYTHON
    ),
    "custom-steps": Section("on_torch.steps:custom", _STEP),
    "o2-steps": Section("on_torch.steps:o2", _STEP),
    "decorated-steps": Section("on_torch.decorated:comparisons", Effort(300, 0.002)),
    "decorated-steps-python": Section(
        "on_torch.decorated:comparisons", Effort(300, 0.002), variables=_IN_PYTHON, ending=_PYTHON
    ),
    "aftermath": Section("on_torch.aftermath:comparisons", _OPERATION),
    "layers": Section("on_torch.layers:comparisons", _OPERATION),
    "growth": Section("on_torch.growth:comparisons", Effort(10, 0.0)),
    "scaling": Section("on_torch.scaling:comparisons", _OPERATION),
    "memory": Section("on_torch.memory:comparisons", _MEMORY, quick=False),
    "import": Section("starting:importing", _PROCESS),
    "first-region": Section("starting:first_region", Effort(10, 0.0)),
    "paddle-regions": Section("on_paddle.regions:comparisons", _OPERATION),
    "paddle-operations": Section("on_paddle.operations:comparisons", _OPERATION),
    "paddle-steps": Section("on_paddle.steps:comparisons", _LAYER),
    "paddle-decorated": Section("on_paddle.decorated:comparisons", _OPTIMIZER),
    "paddle-memory": Section("on_paddle.memory:comparisons", _MEMORY, quick=False),
    "paddle-aftermath": Section("on_paddle.operations:aftermath", _OPERATION),
    "mindspore-regions": Section("on_mindspore.regions:comparisons", _OPERATION),
    "mindspore-operations": Section("on_mindspore.operations:comparisons", Effort(750, 0.0003)),
    "mindspore-steps": Section("on_mindspore.steps:comparisons", _STEP),
    "mindspore-decorated": Section("on_mindspore.decorated:comparisons", Effort(60, 0.0)),
    "mindspore-memory": Section("on_mindspore.memory:comparisons", _MEMORY, quick=False),
    "mindspore-aftermath": Section("on_mindspore.operations:aftermath", _OPERATION),
    "tensorflow-regions": Section("on_tensorflow.regions:comparisons", _OPERATION),
    "tensorflow-operations": Section("on_tensorflow.operations:comparisons", _OPERATION),
    "tensorflow-tracing": Section("on_tensorflow.operations:tracing", _PROCESS),
    "tensorflow-first-trace": Section("on_tensorflow.first_trace:comparisons", Effort(10, 0.0)),
    "tensorflow-steps": Section("on_tensorflow.steps:comparisons", Effort(60, 0.0)),
    "tensorflow-decorated": Section("on_tensorflow.decorated:comparisons", Effort(150, 0.0)),
    "tensorflow-memory": Section("on_tensorflow.memory:comparisons", _MEMORY, quick=False),
    "tensorflow-aftermath": Section("on_tensorflow.operations:aftermath", _OPERATION),
    "jax-regions": Section("on_jax.regions:comparisons", _OPERATION),
    "jax-operations": Section("on_jax.operations:comparisons", _OPERATION),
    "jax-tracing": Section("on_jax.operations:tracing", _PROCESS),
    "jax-steps": Section("on_jax.steps:comparisons", Effort(60, 0.0)),
    "jax-memory": Section("on_jax.memory:comparisons", _MEMORY, quick=False),
    "jax-aftermath": Section("on_jax.operations:aftermath", _OPERATION),
}

_FRAMEWORKS = ("paddle", "mindspore", "tensorflow", "jax")


def framework_of(section: str) -> str | None:
    """Return the framework of a section; None for a section without one."""
    if section == "import":
        return None
    return next((name for name in _FRAMEWORKS if section.startswith(f"{name}-")), "torch")


def missing(section: str) -> str | None:
    """Return the framework that a section needs, if it is not installed; else None."""
    framework = framework_of(section)
    return None if framework is None or find_spec(framework) else framework


def standings(
    section: str, quick: bool, titles: str = "*", variables: Mapping[str, str] | None = None
) -> Iterator[Standing]:
    """Yield the section's comparisons, each when it is measured.

    Args:
        section: the name of the section.
        quick: whether to take a fifth of the rounds.
        titles: a pattern; only comparisons whose title matches are measured.
        variables: environment variables of the process, beside the section's own.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, section, quick, titles))
    with _environment({**(variables or {}), **SECTIONS[section].variables}):
        process.start()
    theirs.close()
    try:
        while True:
            yield ours.recv()
    except EOFError:
        process.join()
    if process.exitcode:
        raise SystemExit(f"section {section!r} failed; see above")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while a process starts, because the process inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run(connection: Any, section: str, quick: bool, titles: str) -> None:
    place, effort, _, ending, _ = SECTIONS[section]
    module, make = place.split(":")
    rounds = (
        min(effort.rounds, max(_FEWEST, round(effort.rounds * _QUICK))) if quick else effort.rounds
    )
    for comparison in getattr(importlib.import_module(f"benchmarks.{module}"), make)():
        if fnmatch(comparison.title, titles):
            titled = replace(comparison, title=comparison.title + ending)
            connection.send(measure(titled, Effort(rounds, effort.seconds)))
