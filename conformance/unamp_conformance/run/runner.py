"""The runner of the suite: processes of one framework and device each, each of them watched.

Several run at a time. A crash or a hang is a result like any other, of the check in which it
happened; another process goes on after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import unamp
from unamp_conformance.check import agreement
from unamp_conformance.machine import host
from unamp_conformance.results import FrameworkRun, Report
from unamp_conformance.run.kept import Kept
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.processes import WORKER, Died, Hangs, Worker
from unamp_conformance.run.tasks import Task

__all__ = ["Options", "Progress", "run", "run_framework"]

#: The least seconds that a framework has to open: it may take longer than any check. A longer
#: timeout of checks holds for it, too.
OPENING_TIMEOUT = 300.0

#: The defaults of a worker's environment variables.
_ENVIRONMENT = {
    # Tensors are tiny: threads of a kernel would wait for each other, and take three times the time
    # (measured with torch).
    "OMP_NUM_THREADS": "1",
    # JAX and TensorFlow take the whole memory of a GPU otherwise, and leave none to the workers
    # beside.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}

_RESTARTS = 8
_WORTHWHILE = 60  # items left for each worker that make it worth opening the framework once more

#: Called as ``progress(framework, device, done, total, name of the item)``.
Progress = Callable[[str, str, int, int, str], None]


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        jobs: how many processes at a time.
        timeout: after how many seconds a check hangs.
        keep: the folder that keeps results of finished items while the run is under way; None keeps
            nothing.
        resume: use what an interrupted run has left there.
        imports: modules of the user's own, or files, that register operations.
        command: the command that starts a worker.
        progress: called before every item.
    """

    jobs: int = 1
    timeout: float = 300.0
    keep: Path | None = None
    resume: bool = False
    imports: Sequence[str] = ()
    command: Sequence[str] = WORKER
    progress: Progress = lambda *_: None


def run(
    frameworks: Sequence[str],
    devices: Sequence[str],
    selection: Selection,
    options: Options = Options(),
) -> Report:
    """Run the selection on every framework and device, and compare frameworks with each other.

    Args:
        frameworks: their names.
        devices: ``"cpu"``, ``"gpu"``, ``"second"`` and names of devices that are not here, as
            wanted.
        selection: what to run.
        options: how.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    runs = _runs(
        [(framework, device) for framework in frameworks for device in devices], selection, options
    )
    compared = agreement.pairs(runs) if selection.wants("agreement") else ()
    return Report(unamp.__version__, started, host(), selection.as_dict(), (*runs, *compared))


def run_framework(
    framework: str, device: str, selection: Selection, options: Options = Options()
) -> FrameworkRun:
    """Run the selection on one framework and device; see `run`."""
    (found,) = _runs([(framework, device)], selection, options)
    return found


def _runs(
    subjects: Sequence[tuple[str, str]], selection: Selection, options: Options
) -> tuple[FrameworkRun, ...]:
    crew = _Crew([_task(*subject, selection, options) for subject in subjects], options)
    crew.work()
    return tuple(task.outcome() for task in crew.tasks)


def _task(framework: str, device: str, selection: Selection, options: Options) -> Task:
    kept = Kept(options.keep, framework, device) if options.keep else None
    return Task(framework, device, selection, kept, options.resume, options.imports)


class _Crew:
    """Threads, each of which looks after one worker process at a time.

    One condition guards all that they share.
    """

    def __init__(self, tasks: list[Task], options: Options) -> None:
        self.tasks = tasks
        self._options = options
        self._changed = threading.Condition()
        self._workers: set[Worker] = set()
        self._stopped = False
        self._environment = {**_ENVIRONMENT, **os.environ}

    def work(self) -> None:
        """Do all tasks; end all processes where this is interrupted."""
        with ThreadPoolExecutor(self._options.jobs) as pool:
            members = [pool.submit(self._serve) for _ in range(self._options.jobs)]
            try:
                for member in members:
                    member.result()
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            workers = list(self._workers)
            self._changed.notify_all()
        for worker in workers:
            worker.end(at_once=True)

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            began = time.monotonic()
            try:
                while self._one_process(task):
                    pass
            finally:
                with self._changed:
                    task.workers -= 1
                    task.seconds = max(task.seconds, time.monotonic() - began)
                    self._changed.notify_all()

    def _next(self) -> Task | None:
        """Return the task to help with.

        A task without a worker comes first, then the one with most to do for each of its workers.
        """
        with self._changed:
            while not self._stopped:
                free = [task for task in self.tasks if not task.ended and self._is_told(task)]
                untouched = [task for task in free if not task.workers]
                worth = [task for task in free if task.workers and self._needs_another(task)]
                if chosen := (
                    untouched
                    or sorted(worth, key=lambda task: task.left() / task.workers, reverse=True)
                )[:1]:
                    chosen[0].workers += 1
                    return chosen[0]
                if all(task.ended or task.planned for task in self.tasks):
                    return None
                self._changed.wait()
        return None

    def _needs_another(self, task: Task) -> bool:
        return not task.alone and task.left() >= _WORTHWHILE * (task.workers + 1)

    def _is_told(self, task: Task) -> bool:
        """Return whether a task may begin.

        The worker that opens a framework for the CPU tells which other devices there are.
        """
        return task.device == "cpu" or not any(
            o.framework == task.framework and o.device == "cpu" and not (o.planned or o.ended)
            for o in self.tasks
        )

    def _one_process(self, task: Task) -> bool:
        """Open a worker and follow it to its end; return whether another must go on after it."""
        with self._changed:
            if self._stopped or not task.goes_on():
                return False
            worker = Worker(self._options.command, task.orders(), self._environment)
            self._workers.add(worker)
        item, timeout = None, max(OPENING_TIMEOUT, self._options.timeout)
        try:
            while (fact := worker.hear(timeout)) is not None:
                timeout = self._options.timeout
                with self._changed:
                    item = self._heard(task, worker, item, fact)
                    self._changed.notify_all()
                if item is None and (task.ended or fact["event"] in ("planned", "finished")):
                    return False
            return self._lost(
                task, item, "crashed", "the framework's process ended (exit status 0)"
            )
        except Died as error:
            return self._lost(task, item, "crashed", f"the framework's process died {error}")
        except Hangs as error:
            return self._lost(task, item, "hung", str(error))
        finally:
            self._workers.discard(worker)
            worker.end(at_once=item is not None)

    def _heard(
        self, task: Task, worker: Worker, item: int | None, fact: Mapping[str, Any]
    ) -> int | None:
        """Take in a worker's report, and tell it what to do next.

        Return the item that it is doing then.
        """
        task.hear(item, fact)
        if fact["event"] == "opened":
            for other in self.tasks:
                if (
                    other.framework == task.framework
                    and not other.workers
                    and other.device not in fact["devices"]
                ):
                    other.be_absent(fact["version"], fact.get("missing", ""))
        if fact["event"] not in ("planned", "finished"):
            return item
        chosen = task.take(item)
        if chosen is not None:
            self._options.progress(
                task.framework, task.device, task.done(), len(task.items), task.items[chosen].name
            )
            worker.order(task.order(chosen))
        return chosen

    def _lost(self, task: Task, item: int | None, status: str, message: str) -> bool:
        with self._changed:
            self._changed.notify_all()
            if self._stopped:
                return False
            if item is None and not task.planned:
                task.ended = f"not opened: {message}"
                return False
            if item is None and task.workers > 1:
                # a further worker did not open: it is not needed, and memory may be short
                task.alone = True
                return False
            task.lose(item, status, message)
            if task.restarts > _RESTARTS:
                task.abandon(f"given up: its process ended early {task.restarts} times")
            return task.goes_on()
