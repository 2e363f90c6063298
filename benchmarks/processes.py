"""Contenders that need a process of their own: fresh interpreters, and processes with another past."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Contender, Sampler

__all__ = ["Elsewhere", "FreshInterpreter"]


@dataclass(frozen=True)
class FreshInterpreter:
    """Python source that prints seconds, run by a new interpreter for each sample."""

    name: str
    source: str
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        self.sample()  # compiles what it imports
        return self

    def sample(self) -> float:
        done = subprocess.run([sys.executable, "-c", self.source], stdout=subprocess.PIPE, text=True, check=True)
        return float(done.stdout)


@dataclass(frozen=True)
class Elsewhere:
    """A contender that another process makes, after something has happened there, and that is timed there.

    Attributes:
        make: a function of a module, without arguments, which does what is to have happened and returns the contender.
        processes: how many such processes take turns. Two processes differ by a percent or two by where their memory
            happens to lie; several even that out.
    """

    name: str
    make: Callable[[], Contender]
    goal: float | None = None
    at_most: float | None = None
    processes: int = 4

    def sampler(self, seconds: float) -> Sampler:
        return _Turns([_Remote(self.make, seconds) for _ in range(self.processes)])


class _Turns:
    def __init__(self, remotes: list[_Remote]) -> None:
        self._remotes = remotes
        self._next = 0

    def sample(self) -> float:
        self._next += 1
        return self._remotes[self._next % len(self._remotes)].sample()


class _Remote:
    def __init__(self, make: Callable[[], Contender], seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make, seconds), daemon=True)
        process.start()
        theirs.close()
        self._connection.recv()  # ready

    def sample(self) -> float:
        self._connection.send(None)
        return float(self._connection.recv())


def _serve(connection: Any, make: Callable[[], Contender], seconds: float) -> None:
    sampler = make().sampler(seconds)
    connection.send(None)
    try:
        while True:
            connection.recv()
            connection.send(sampler.sample())
    except EOFError:
        pass
