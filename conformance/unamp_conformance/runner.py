"""Runs the suite: one process per framework and device, watched, so that a crash or a hang is a result like any other."""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import unamp
from unamp_conformance import agreement, gaps
from unamp_conformance.plan import Selection
from unamp_conformance.results import FrameworkRun, Report, Result

__all__ = ["Progress", "host", "run", "run_framework"]

#: An item that takes longer than so many seconds hangs; opening the framework may take longer still.
ITEM_TIMEOUT = 120.0
OPENING_TIMEOUT = 300.0

_RESTARTS = 8

#: Called as ``progress(framework, device, done, total, name of the item)``.
Progress = Callable[[str, str, int, int, str], None]


def run(
    frameworks: Sequence[str],
    devices: Sequence[str],
    selection: Selection,
    progress: Progress = lambda *_: None,
    *,
    item_timeout: float = ITEM_TIMEOUT,
) -> Report:
    """Run the selection on every framework and device, one after the other, and compare the frameworks.

    Args:
        frameworks: their names.
        devices: ``"cpu"`` and ``"gpu"``, as wanted.
        selection: what to run.
        progress: told before every item.
        item_timeout: after how many seconds an item hangs.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    runs = tuple(
        run_framework(framework, device, selection, progress, item_timeout=item_timeout)
        for framework in frameworks
        for device in devices
    )
    compared = agreement.pairs(runs) if selection.wants("agreement") else ()
    return Report(unamp.__version__, started, host(), selection.as_dict(), (*runs, *compared))


def host() -> dict[str, str]:
    """What the run's machine is, for the report."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def run_framework(
    framework: str,
    device: str,
    selection: Selection,
    progress: Progress = lambda *_: None,
    *,
    item_timeout: float = ITEM_TIMEOUT,
    command: Sequence[str] = (sys.executable, "-m", "unamp_conformance.worker"),
) -> FrameworkRun:
    """Run the selection on one framework and device; its process is restarted after the item in which it dies or hangs.

    Args:
        framework, device, selection, progress, item_timeout: see `run`.
        command: what starts the worker.
    """
    began = time.monotonic()
    state = _State(framework, device, selection, progress)
    for _ in range(_RESTARTS + 1):
        if not _one_process(state, item_timeout, command):
            break
    else:
        state.ended = f"given up: its process ended early {_RESTARTS + 1} times"
        state.abandon()
    found, useless = state.results, ()
    if state.ended == "finished":
        own = [gap for gap in gaps.gaps_of(framework) if gap.check != "agreement"]
        found, useless = gaps.apply(own, found, state.version, whole=selection.whole)
    seconds = round(time.monotonic() - began, 1)
    return FrameworkRun(framework, state.version, device, state.ended, tuple(found), tuple(useless), seconds)


@dataclass
class _State:
    """What is known about a framework's run so far; it outlives the process."""

    framework: str
    device: str
    selection: Selection
    progress: Progress
    version: str = "unknown"
    ended: str = "started"
    items: list[str] = field(default_factory=list)
    next: int = 0
    doing: Mapping[str, Any] | None = None
    results: list[Result] = field(default_factory=list)

    def orders(self, pipe: int) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "device": self.device,
            "selection": self.selection.as_dict(),
            "start": self.next,
            "pipe": pipe,
        }

    def lose(self, status: str, message: str) -> None:
        """The process died or hangs: every check of the item that it was doing gets that status."""
        for check in self.doing["checks"] if self.doing else ():
            for policy in ("-",) if check == "coverage" else self.doing["policies"]:
                self.results.append(Result(check, self.doing["subject"], policy, self.device, status, message))
        self.doing = None

    def abandon(self) -> None:
        """What was not reached is a result too."""
        for name in self.items[self.next :]:
            self.results.append(Result("item", name, "-", self.device, "not run", "the framework's process kept ending early"))


def _one_process(state: _State, item_timeout: float, command: Sequence[str]) -> bool:
    """Start a worker and follow it to its end. True where another must go on after it."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(writing,), text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_pump, args=(os.fdopen(reading, encoding="utf-8"), lines), daemon=True),
        threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        _order(process, state.orders(writing))
        timeout = OPENING_TIMEOUT
        while (line := lines.get(timeout=timeout)) is not None:
            timeout = item_timeout
            if _heard(state, json.loads(line)):
                return False
        process.wait()
        readers[1].join(timeout=5)
        return _died(state, process.returncode, errors)
    except queue.Empty:
        return _hangs(state, timeout)
    finally:
        _end(process)


def _order(process: subprocess.Popen[str], orders: dict[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(orders))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; its end is noticed where it is read from


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            if line.endswith("\n"):  # half a line is what a dying process leaves
                lines.put(line)
    lines.put(None)


def _heard(state: _State, fact: dict[str, Any]) -> bool:
    """Take in one report of the worker. True where it was the last."""
    event = fact["event"]
    if event == "opened":
        state.version = fact["version"]
        state.ended = "started" if fact["present"] else "not run"
    elif event == "unusable":
        state.ended = f"not usable: {fact['why']}"
        return True
    elif event == "planned":
        state.items = fact["items"]
    elif event == "started":
        state.doing, state.next = fact, fact["number"] + 1
        state.progress(state.framework, state.device, fact["number"], len(state.items), state.items[fact["number"]])
    elif event == "finished":
        state.results.extend(Result(**result) for result in fact["results"])
        state.doing = None
    elif event == "done":
        state.ended = "finished" if state.ended == "started" else state.ended
        return True
    return False


def _died(state: _State, code: int, errors: Sequence[str]) -> bool:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    said = "".join(errors[-8:]).strip()
    if state.doing is None and not state.items:
        state.ended = f"its process died while the framework was opened ({how}): {said}"
        return False
    state.lose("crashed", f"the framework's process died ({how}): {said}"[:1500])
    return True


def _hangs(state: _State, timeout: float) -> bool:
    if state.doing is None and not state.items:
        state.ended = f"its process did not open the framework within {timeout:.0f} seconds"
        return False
    state.lose("hung", f"not finished within {timeout:.0f} seconds")
    return True


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()  # only Linux tells the model's name this way
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
