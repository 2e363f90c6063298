"""Costs that grow with a size, and must not grow faster than it: the seconds for each size.

A contender's name is its size. Its goal is linear growth from the smallest size, with a tenth more
for noise. Where the work does not grow (policies that take turns), the goal is that there is no
cliff.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch

import unamp
from benchmarks.measure import Comparison, Sampler
from unamp.vocabulary import vocabulary

__all__ = ["comparisons"]

_NOISE, _CLIFF = 1.1, 2.0
_POLICY = unamp.Policy(dtype="bfloat16")


@dataclass(frozen=True)
class _Size:
    """One size of the work.

    `run` does the work once, and returns the number of timed executions in it.
    """

    name: str
    run: Callable[[], int]
    goal: float | None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        self.run()
        return self

    def sample(self) -> float:
        began = time.process_time()
        times = self.run()
        return (time.process_time() - began) / times


def _growth(
    title: str,
    make: Callable[[int], Callable[[], int]],
    sizes: tuple[int, ...],
    *,
    same: bool = False,
) -> Comparison:
    goals = (_CLIFF if same else _NOISE * size / sizes[0] for size in sizes)
    contenders = (
        _Size(str(size), make(size), goal) for size, goal in zip(sizes, goals, strict=True)
    )
    return Comparison(f"growth: {title}", tuple(contenders))


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons, each made only in its turn: the largest would disturb the others."""
    yield _growth("operations in an allow list, the policy made", _made, (1, 3, 10, 30, 100, 300))
    yield _growth(
        "operations in an allow list, its region opened", _listed, (1, 3, 10, 30, 100, 300)
    )
    yield _growth("regions inside each other", _nested, (1, 2, 5, 10, 20, 50))
    yield _growth(
        "policies that take turns, one region", _policies, (1, 10, 100, 256, 257, 500), same=True
    )
    yield _growth("threads, a thousand regions in each", _threads, (1, 2, 4, 8, 16))
    for what, make in (("recorded", _recorded), ("as JSON", _as_json), ("as a page", _as_page)):
        yield _growth(f"records of a trace, {what}", make, (10, 100, 1000, 10_000, 100_000))
    yield _growth("parameters, decorated", _decorated, (10, 100, 1000, 10_000))
    yield _growth("parameters, an optimizer step", _stepped, (10, 100, 1000, 10_000))


def _names(count: int) -> tuple[str, ...]:
    return tuple(
        itertools.islice(
            (name for name, operation in vocabulary().items() if not operation.is_cast), count
        )
    )


def _made(size: int) -> Callable[[], int]:
    names = _names(size)

    def run() -> int:
        for _ in range(10):
            unamp.Policy(dtype="bfloat16", allow=names)
        return 10

    return run


def _listed(size: int) -> Callable[[], int]:
    names = _names(size)

    def run() -> int:
        for _ in range(100):
            with unamp.autocast("cpu", "bfloat16", allow=names):
                pass
        return 100

    return run


def _nested(size: int) -> Callable[[], int]:
    region = unamp.policy_region(_POLICY)

    def run() -> int:
        for _ in range(100):
            with ExitStack() as stack:
                for _ in range(size):
                    stack.enter_context(region)
        return 100

    return run


def _policies(size: int) -> Callable[[], int]:
    names = _names(500)
    pairs = [(names[i], names[(7 * i + 3) % 500]) for i in range(size)]

    def run() -> int:
        rounds = 1 + 200 // size
        for allow in pairs * rounds:
            with unamp.autocast("cpu", "bfloat16", allow=allow):
                pass
        return size * rounds

    return run


def _threads(size: int) -> Callable[[], int]:
    region = unamp.policy_region(_POLICY)

    def work() -> None:
        for _ in range(1000):
            with region:
                pass

    def run() -> int:
        threads = [threading.Thread(target=work) for _ in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1

    return run


def _traced(size: int) -> unamp.Trace:
    x = torch.ones(4)
    with unamp.policy_region(_POLICY), unamp.trace() as trace:
        for _ in range(size):
            x + x
    return trace


def _recorded(size: int) -> Callable[[], int]:
    return lambda: len([_traced(size) for _ in range(1 + 100 // size)])


def _as_json(size: int) -> Callable[[], int]:
    trace = _traced(size)
    return lambda: len([trace.to_json() for _ in range(1 + 100 // size)])


def _as_page(size: int) -> Callable[[], int]:
    trace = _traced(size)
    return lambda: len([trace.to_html() for _ in range(1 + 100 // size)])


def _network(size: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    network = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4)) for _ in range(size)])
    return network, torch.optim.SGD(network.parameters(), lr=0.1)


def _decorated(size: int) -> Callable[[], int]:
    def run() -> int:
        unamp.decorate(*_network(size), "O2", "bfloat16")
        return 1

    return run


def _stepped(size: int) -> Callable[[], int]:
    network, optimizer = _network(size)
    unamp.decorate(network, optimizer, "O2", "bfloat16")
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)

    def run() -> int:
        times = 1 + 1000 // size
        for _ in range(times):
            optimizer.step()
        return times

    return run
