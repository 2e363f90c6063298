"""Peak memory of training: `python -m benchmarks.memory MODULE WAY` prints the bytes of one way.

The training runs in this process. Each sample is a new process, so that nothing is left of another.
The result is the memory above that of a process that has imported the framework and trained a tiny
network in the same way: parameters, gradients, optimizer state, activations, and all else that the
framework or unamp keeps. On a GPU the framework tells it, elsewhere the system.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import unamp
from benchmarks.measure import Comparison, Sampler

__all__ = ["LOW", "Meter", "Size", "Way", "comparisons", "resident"]

LOW = ("bfloat16", "float16")

_STEPS = 3
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Way:
    """One way to train a network.

    Attributes:
        network: ``"encoder"``, where activations need most memory, or ``"wide"``, where parameters
            do.
        by: ``"float32"``, ``"unamp"``, or the name of the framework's own AMP.
        level, dtype: the level and dtype of the policy, in the words of unamp or of that AMP.
        decorated: whether parameters are low; with ``masters``, the optimizer steps float32 master
            weights of them.
    """

    network: str
    by: str = "float32"
    level: str = ""
    dtype: str = "float32"
    decorated: bool = False
    masters: bool = True

    def region(self, device: str | None = None) -> AbstractContextManager[Any]:
        """Return unamp's region for this way; an empty context for other ways."""
        if self.by != "unamp":
            return nullcontext()
        return unamp.autocast(
            device, "bfloat16" if self.level == "O0" else self.dtype, level=self.level
        )

    @property
    def name(self) -> str:
        """Return the name of the way's row in the table."""
        if self.by == "float32":
            return self.by
        parameters = (
            f", {'decorated' if self.masters else 'decorated without masters'}"
            if self.decorated
            else ""
        )
        return f"{' '.join(filter(None, (self.by, self.level)))}, {self.dtype}{parameters}"


class Size(NamedTuple):
    """The size of a network and of its batch.

    The wide network has a batch of `sequences` rows, and no `length`.
    """

    layers: int
    width: int
    sequences: int
    length: int


#: Some 400 MB in float32 each, in tensors so large that freed ones go back to the system at once.
_SIZES = {"encoder": Size(2, 256, 64, 128), "wide": Size(6, 2048, 16, 0)}
_TINY = {"encoder": Size(1, 64, 2, 16), "wide": Size(2, 64, 4, 0)}
_TITLES = {"encoder": "2 encoder layers, SGD", "wide": "6 linear layers of 2048, Adam"}


class Meter(NamedTuple):
    """Functions that read memory: the bytes in use, and the peak since `reset`."""

    used: Callable[[], int]
    reset: Callable[[], object]
    peak: Callable[[], int]


class _Framework(Protocol):
    """The module of one framework's memory benchmarks."""

    def prepare(self, way: Way, size: Size) -> Callable[[], object]:
        """Make a network and an optimizer; return a step that ends when all is computed."""

    def meter(self) -> Meter:
        """Return the meter of the device that the framework computes on."""


def resident() -> Meter:
    """Return the meter of this process's resident memory.

    Linux can reset the peak. Elsewhere the peak of the whole life of the process is read: where it
    is above that before the training, it is the training's.
    """
    try:
        _CLEAR.write_text("5")
    except OSError:
        return Meter(_largest, lambda: None, _largest)
    return Meter(lambda: _status("VmRSS"), lambda: _CLEAR.write_text("5"), lambda: _status("VmHWM"))


def _status(field: str) -> int:
    line = next(
        line for line in _STATUS.read_text("utf-8").splitlines() if line.startswith(f"{field}:")
    )
    return int(line.split()[1]) * 1024


def _largest() -> int:
    try:
        import resource
    except ImportError as error:
        raise RuntimeError(
            "this system tells no peak of resident memory: run the memory benchmarks on Linux or "
            "macOS"
        ) from error
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


@dataclass(frozen=True)
class Training:
    """A contender: one way to train, measured in a new process each time."""

    module: str
    way: Way
    goal: float | None = None
    at_most: float | None = None

    @property
    def name(self) -> str:
        return self.way.name

    def sampler(self, seconds: float) -> Sampler:
        return self

    def sample(self) -> float:
        command = [sys.executable, "-m", __name__, self.module, json.dumps(asdict(self.way))]
        path = os.pathsep.join(
            filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
        )
        with tempfile.TemporaryDirectory() as folder:  # MindSpore's AMP writes files where it runs
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=folder, env=environment
            )
        if done.returncode:  # the output of a framework matters only then
            raise RuntimeError(
                f"{self.module}, {self.name}: exit status {done.returncode}\n{done.stderr[-4000:]}"
            )
        return float(done.stdout.split()[-1])


def comparisons(
    framework: str,
    module: str,
    own: Iterable[Way],
    *,
    alone: str = "bfloat16",
    wide: Sequence[str] = LOW,
) -> Iterator[Comparison]:
    """Yield a comparison of float32, the framework's own ways, and unamp's levels, per network.

    Args:
        framework: the beginning of the titles.
        module: the name of the framework's module; see `_Framework`.
        own: the framework's own ways.
        alone: the dtype of low parameters without masters; some optimizers cannot step bfloat16.
        wide: the low dtypes in which the wide network is trained.
    """
    ways = {
        "encoder": [
            Way("encoder", "unamp", level, dtype) for level in ("O1", "O2", "O3") for dtype in LOW
        ],
        "wide": [
            *(Way("wide", "unamp", "O1", dtype) for dtype in wide),
            *(Way("wide", "unamp", "O2", dtype, decorated=True) for dtype in wide),
            Way("wide", "unamp", "O2", alone, decorated=True, masters=False),
        ],
    }
    for network, ours in ways.items():
        all_ways = (
            Way(network),
            *(way for way in own if way.network == network),
            Way(network, "unamp", "O0"),
            *ours,
        )
        contenders = tuple(Training(module, way) for way in all_ways)
        yield Comparison(f"memory, {framework}: {_TITLES[network]}", contenders, "bytes")


def _main(module: str, way: str) -> None:
    framework: _Framework = importlib.import_module(module)
    asked = Way(**json.loads(way))
    meter = framework.meter()
    _train(framework.prepare(asked, _TINY[asked.network]))
    gc.collect()
    before = meter.used()
    step = framework.prepare(asked, _SIZES[asked.network])
    meter.reset()
    _train(step)
    print(meter.peak() - before)


def _train(step: Callable[[], object]) -> None:
    for _ in range(_STEPS):
        step()


if __name__ == "__main__":
    _main(*sys.argv[1:])
