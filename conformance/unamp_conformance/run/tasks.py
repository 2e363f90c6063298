"""One framework and device of a run: the items to do, the items being done, and the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from unamp.adapter import Fact
from unamp_conformance import gaps
from unamp_conformance.results import FrameworkRun, Result
from unamp_conformance.run.kept import Kept, fingerprint
from unamp_conformance.run.plan import Selection, full_items
from unamp_conformance.subjects import SECOND, is_absent

__all__ = ["Task"]


class Planned(NamedTuple):
    """An item of the plan, as the runner has it: with the names of its policies."""

    kind: str
    subject: str
    policies: tuple[str, ...]
    checks: tuple[str, ...]
    way: str = ""

    @property
    def name(self) -> str:
        """The name, as it is shown."""
        policy = self.policies[0] if len(self.policies) == 1 else ""
        return " ".join(filter(None, (self.subject, policy, self.way)))


class Task:
    """The work on one framework and device. It outlives every process that works on it.

    Args:
        framework, device, selection: the framework, the device, and the checks to run.
        kept: the results of finished items on disk; None where they are not kept.
        resume: use the results on disk.
        imports: the modules that the workers import, which register operations.
    """

    def __init__(
        self,
        framework: str,
        device: str,
        selection: Selection,
        kept: Kept | None = None,
        resume: bool = False,
        imports: Sequence[str] = (),
    ) -> None:
        self.framework, self.device, self.selection, self.imports = (
            framework,
            device,
            selection,
            imports,
        )
        self.version = "unknown"
        #: the facts about the machine; see `unamp.adapter.machine.facts`
        self.facts: dict[str, Fact] = {}
        self.variables: dict[str, str] = {}  #: the environment variables that change these facts
        self.ended = ""  #: the way in which the task ended; empty until then
        self.items: list[Planned] = []
        self.planned = False
        self.workers = 0
        self.alone = False  #: whether one more worker failed to open the framework
        self.restarts = 0
        self.seconds = 0.0
        self._kept, self._resume = kept, resume
        self._todo: deque[int] = deque()
        self._doing: dict[int, dict[str, Any]] = {}
        self._found: dict[int, list[Result]] = {}

    def orders(self) -> dict[str, Any]:
        """Return the orders for a worker that opens the framework."""
        said = {
            "framework": self.framework,
            "device": self.device,
            "selection": self.selection.as_dict(),
        }
        return {**said, "imports": list(self.imports)}

    def order(self, item: int) -> dict[str, Any]:
        """Return the order for a worker: the item to do, and its policies that are done already."""
        return {
            "item": item,
            "without": sorted({result.policy for result in self._found.get(item, ())} - {"-"}),
        }

    def left(self) -> int:
        """Return the number of items that no worker has begun."""
        return len(self._todo)

    def done(self) -> int:
        """Return the number of finished items."""
        return len(self.items) - len(self._todo) - len(self._doing)

    def goes_on(self) -> bool:
        """Return whether there is an item to begin, or a plan to make."""
        return not self.ended and (not self.planned or bool(self._todo))

    def take(self, last: int | None = None) -> int | None:
        """Return the next item to do.

        None where there is none; the task ends once all items are finished.

        Args:
            last: the item that the process did before. The next one has the same subject, if
                possible: the process has compiled its parts. Else, if possible, it has a subject
                that no other process works on.
        """
        if self._todo and not self.ended:
            own = self.items[last].subject if last is not None else ""
            others = {self.items[item].subject for item in self._doing}
            wanted = (
                (lambda subject: subject == own),
                (lambda subject: subject not in others),
                (lambda subject: True),
            )
            item = next(
                item for fits in wanted for item in self._todo if fits(self.items[item].subject)
            )
            self._todo.remove(item)
            self._doing[item] = {}
            return item
        if not self._doing and not self.ended:
            self.ended = "finished"
        return None

    def hear(self, item: int | None, fact: Mapping[str, Any]) -> None:
        """Take in one report of a worker.

        Args:
            item: the item that the worker is doing.
            fact: the report.
        """
        event = fact["event"]
        if event == "opened":
            self.version = fact["version"]
            # the fact about the draw stays: a second worker may open after the first one planned
            self.facts, self.variables = (
                {**self.facts, **fact.get("facts", {})},
                fact.get("variables", {}),
            )
            if not fact["present"]:
                self.be_absent(self.version, fact.get("missing", ""))
        elif event == "unusable":
            self.ended = f"not usable: {fact['why']}"
        elif event == "planned" and not self.planned:
            self._plan(fact["items"])
            if fact.get("draw"):
                self.facts = {**self.facts, "drawn": fact["draw"]}
        elif item is None:
            return
        elif event == "begun":
            self._doing[item] = dict(fact)
        elif event == "found":
            self._found.setdefault(item, []).extend(Result(**result) for result in fact["results"])
        elif event == "finished":
            self._finish(item)

    def be_absent(self, version: str, why: str) -> None:
        """End the task because its device is absent.

        A worker that opened the framework for another device may have reported this.

        Args:
            version: the framework's version.
            why: the reason why no program is read for the device either.
        """
        self.version, self.ended = version, "not run"
        if is_absent(self.device):
            self.facts = {**self.facts, "not run": why}

    def lose(self, item: int | None, status: str, message: str) -> None:
        """Record that the process of an item died or hangs.

        The checks that it had begun have the same result. The others are left to do.
        """
        self.restarts += 1
        if item is None:
            return
        begun = self._doing.pop(item)
        if begun:
            way = self.items[item].way
            lost = (
                Result(c, begun["subject"], begun["policy"], self.device, status, message, way=way)
                for c in begun["checks"]
            )
            self._found.setdefault(item, []).extend(lost)
        policies = {result.policy for result in self._found.get(item, ())}
        if (not begun or begun["policy"] != "-") and not policies.issuperset(
            self.items[item].policies
        ):
            self._todo.appendleft(item)
        else:
            self._end_where_done()

    def abandon(self, why: str) -> None:
        """End the task, and record a result for each item that was not reached."""
        self.ended = why
        for item in self._todo:
            missing = Result(
                "item",
                self.items[item].name,
                "-",
                self.device,
                "not run",
                "the framework's process kept ending early",
            )
            self._found.setdefault(item, []).append(missing)
        self._todo.clear()

    def outcome(self) -> FrameworkRun:
        """Return the outcome of the task, with the known gaps marked."""
        found = [result for item in sorted(self._found) for result in self._found[item]]
        useless: tuple[str, ...] = ()
        finished = self.ended == "finished"
        if found or finished:
            own = [gap for gap in gaps.gaps_of(self.framework) if gap.check != "agreement"]
            whole = (
                finished
                and self.selection.whole
                and self.device != SECOND
                and not is_absent(self.device)
            )
            marked, vain = gaps.apply(
                own, found, self.version, self.facts, whole=whole, others=self._of_full_runs
            )
            found, useless = list(marked), vain if finished else ()
        return FrameworkRun(
            self.framework,
            self.version,
            self.device,
            self.ended or "interrupted",
            tuple(found),
            useless,
            round(self.seconds, 1),
            self.facts,
            self.variables,
        )

    def _plan(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.items = [
            Planned(
                i["kind"], i["subject"], tuple(i["policies"]), tuple(i["checks"]), i.get("way", "")
            )
            for i in items
        ]
        self.planned = True
        if self._kept is not None:
            plan = {"selection": self.selection.as_dict(), "items": items}
            key = fingerprint(self.framework, self.version, self.device, plan)
            self._found = self._kept.start(key, resume=self._resume)
        self._todo.extend(number for number in range(len(items)) if number not in self._found)

    def _of_full_runs(self) -> Iterator[Result]:
        """Yield a result for each check that a full run has, also one of a preset."""
        ops = [item.subject for item in self.items if item.kind == "operation"]
        ways = list(dict.fromkeys(item.way for item in self.items if item.kind == "way"))
        for item in full_items(self.selection, ops, ways):
            for check in item.checks:
                for policy in item.policies:
                    yield Result(check, item.subject, policy, self.device, "not run", way=item.way)

    def _finish(self, item: int) -> None:
        del self._doing[item]
        if self._kept is not None and not any(
            r.status in ("crashed", "hung") for r in self._found.get(item, ())
        ):
            self._kept.add(item, self._found.get(item, []))

    def _end_where_done(self) -> None:
        if not self._todo and not self._doing and not self.ended:
            self.ended = "finished"
