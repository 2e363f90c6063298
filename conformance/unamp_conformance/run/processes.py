"""A worker process, watched from outside: started, told what to do, listened to, and ended.

It is ended whatever it does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

__all__ = ["WORKER", "Died", "Hangs", "Worker"]

#: The command that starts a worker.
WORKER = (sys.executable, "-m", "unamp_conformance.run.worker")

_LAST_LINES = 8  # of what a dead process wrote to standard error
_PATIENCE = 5.0  # seconds for a process to end by itself


class Died(Exception):
    """The process ended early; the message says how, with the last lines of its standard error."""


class Hangs(Exception):
    """The process said nothing for too long; the message says for how long."""


class Worker:
    """A worker process.

    Args:
        command: the command that starts it.
        orders: the orders for opening a framework.
        environment: its environment variables.
    """

    def __init__(
        self, command: Sequence[str], orders: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=(writing,), text=True, errors="replace", start_new_session=True,
            env=dict(environment),
        )  # fmt: skip
        os.close(writing)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        pipe = os.fdopen(reading, encoding="utf-8", errors="replace")
        readers = (
            (lambda: self._pump(pipe)),
            (lambda: self._errors.extend(self._process.stderr or ())),
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in readers]
        for reader in self._readers:
            reader.start()
        self.order({**orders, "pipe": writing})

    def order(self, order: Mapping[str, Any]) -> None:
        """Tell the worker what to do next."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died; that is noticed where it is listened to

    def hear(self, timeout: float) -> dict[str, Any] | None:
        """Return the worker's next report; None where it ended as it should.

        Raises:
            Died: where it ended in another way.
            Hangs: where it says nothing for `timeout` seconds.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise Hangs(f"not finished within {timeout:.0f} seconds") from None
        if line is not None:
            fact: dict[str, Any] = json.loads(line)
            return fact
        code = self._process.wait()
        if code == 0:
            return None
        self._readers[1].join(timeout=_PATIENCE)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        said = "".join(self._errors[-_LAST_LINES:]).strip()
        raise Died(f"({how})" + f": {said}"[:1500] * bool(said))

    def end(self, *, at_once: bool = False) -> None:
        """End the worker, and kill it (and what it started) where it does not.

        Args:
            at_once: do not wait for it.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it may have ended already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=0 if at_once else _PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _pump(self, pipe: TextIO) -> None:
        with pipe:
            for line in pipe:
                if line.endswith("\n"):  # half a line is what a dying process leaves
                    self._lines.put(line)
        self._lines.put(None)
