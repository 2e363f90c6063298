"""The progress of a run on standard error.

On a terminal its lines change; elsewhere they come one after another.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

__all__ = ["Shown"]

_LINES = 5  # for each run where lines follow one another, with the first and the last item

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("{task.fields[item]}"),
)


class Shown:
    """The progress of every framework and device: what is done, of how much, and what is next.

    It is shown from the first second on.

    Args:
        runs: the frameworks and devices.
        console: where to.
        quiet: show nothing.
    """

    def __init__(self, runs: Iterable[tuple[str, str]], console: Console, *, quiet: bool) -> None:
        self._console = console
        self._lines = not quiet and not console.is_terminal
        self._bars = Bars(*_COLUMNS, console=console, disable=quiet or self._lines, transient=True)
        self._tasks: dict[tuple[str, str], TaskID] = {
            run: self._bars.add_task(" ".join(run), total=None, item="waits") for run in runs
        }
        self._shown: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Shown:
        self._bars.start()
        if self._lines:
            self._console.print(f"to run: {', '.join(map(' '.join, self._tasks))}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, framework: str, device: str, done: int, total: int, item: str) -> None:
        """Show that an item of a run begins.

        Args:
            framework, device: the framework and the device of the run.
            done: the number of its items that are done.
            total: the number of its items.
            item: the name of the item that begins.
        """
        run = (framework, device)
        self._bars.update(self._tasks[run], completed=done, total=total, item=item)
        fifth = _LINES * done // max(total, 1)
        if self._lines and self._shown.get(run, -1) < fifth:
            self._shown[run] = fifth
            self._console.print(
                f"{framework} {device}: {done:,} of {total:,} done; next {item}", soft_wrap=True
            )
