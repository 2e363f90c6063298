"""Contenders in processes of their own: new interpreters, and processes with different pasts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Contender, Sampler

__all__ = ["Elsewhere", "FreshInterpreter"]

_PROCESSES = 4


@dataclass(frozen=True)
class FreshInterpreter:
    """Python source that prints seconds; a new interpreter runs it for each sample."""

    name: str
    source: str
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        self.sample()  # compiles the modules that it imports
        return self

    def sample(self) -> float:
        # as with an installed package, whose modules pip compiled
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        done = subprocess.run(
            [sys.executable, "-c", self.source],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=environment,
        )
        return float(done.stdout)


@dataclass(frozen=True)
class Elsewhere:
    """A contender that other processes make and time, after they ran something else.

    Two processes differ by a percent or two, by the addresses of their memory. Several processes
    take turns to even that out.

    Attributes:
        past: a function of a module, without arguments, which each process calls first. Contenders
            with the same past share their processes.
        make: a function of a module, without arguments, which returns the contender.
    """

    name: str
    past: Callable[[], None]
    make: Callable[[], Contender]
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        remotes = _processes(self.past)
        for remote in remotes:
            remote.prepare(self.make, seconds)
        return _Turns(remotes)


class _Turns:
    def __init__(self, remotes: tuple[_Remote, ...]) -> None:
        self._remotes = itertools.cycle(remotes)

    def sample(self) -> float:
        return next(self._remotes).sample()


class _Remote:
    def __init__(self, past: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, past), daemon=True).start()
        theirs.close()

    def prepare(self, make: Callable[[], Contender], seconds: float) -> None:
        self._connection.send((make, seconds))
        self._connection.recv()

    def sample(self) -> float:
        self._connection.send(None)
        return float(self._connection.recv())


@functools.cache
def _processes(past: Callable[[], None]) -> tuple[_Remote, ...]:
    return tuple(_Remote(past) for _ in range(_PROCESSES))


def _serve(connection: Any, past: Callable[[], None]) -> None:
    past()
    sampler, answer = None, None
    with contextlib.suppress(EOFError):
        while True:
            asked = connection.recv()
            if asked is not None:
                make, seconds = asked
                sampler, answer = make().sampler(seconds), None
            elif sampler is not None:
                answer = sampler.sample()
            connection.send(answer)
