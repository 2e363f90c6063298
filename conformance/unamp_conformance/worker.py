"""The process of one framework: does the items and reports on each, a line of JSON at a time.

It is started by `unamp_conformance.runner` as ``python -m unamp_conformance.worker`` with its orders on standard input. What
it says goes to a pipe of its own: frameworks write what they like to the standard streams.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

from unamp.adapter import Operations
from unamp_conformance.behaviours import BEHAVIOURS
from unamp_conformance.cases import cases
from unamp_conformance.netchecks import check_network
from unamp_conformance.netruns import Reference
from unamp_conformance.networks import NETWORKS
from unamp_conformance.opchecks import check_operation
from unamp_conformance.plan import Item, Selection, items
from unamp_conformance.probes import Probe, Unsuitable
from unamp_conformance.results import Result
from unamp_conformance.subjects import Subject
from unamp_conformance.training import QUICK, STEPS, check_training

__all__ = ["main", "perform"]


def main() -> None:
    """Read the orders, do them, report."""
    orders = json.load(sys.stdin)
    pipe = os.fdopen(orders["pipe"], "w", encoding="utf-8", buffering=1)

    def say(event: str, **facts: Any) -> None:
        pipe.write(json.dumps({"event": event, **facts}) + "\n")

    warnings.simplefilter("ignore")  # what a framework warns about is not what is checked here
    subject = Subject(orders["framework"], orders["device"])
    selection = Selection.from_dict(orders["selection"])
    try:
        say("opened", version=subject.adapter.version(), present=subject.present())
    except Exception as error:
        return say("unusable", why=f"{type(error).__name__}: {error}")
    if not subject.present():
        return say("done")
    work = list(items(selection, subject.spelled()))
    say("planned", items=[item.name for item in work])
    for number, item in enumerate(work):
        if number < orders["start"]:
            continue
        say("started", number=number, kind=item.kind, subject=item.subject, policies=list(item.policies), checks=item.checks)
        say("finished", number=number, results=[_sayable(result) for result in perform(subject, item, full=selection.full)])
    return say("done")


def perform(subject: Subject, item: Item, *, full: bool = False) -> list[Result]:
    """Do one item; an exception in it is a failure of its checks."""
    doing: dict[str, Callable[[Subject, Item, bool], Iterator[Result]]] = {
        "operation": _operation,
        "network": _network,
        "behaviour": _behaviour,
        "training": _training,
    }
    began = time.perf_counter()
    results = list(doing[item.kind](subject, item, full))
    seconds = round((time.perf_counter() - began) / max(len(results), 1), 6)
    return [Result(**{**vars(result), "seconds": seconds}) for result in results]


def _result(check: str, subject: Subject, item: Item, policy: str, message: str, details: dict[str, Any]) -> Result:
    return Result(check, item.subject, policy, subject.device, "failed" if message else "passed", message, details=details)


def _operation(subject: Subject, item: Item, full: bool) -> Iterator[Result]:
    probe, why = _probe(subject.operations, subject.device, item.subject)
    if "coverage" in item.checks:
        yield _result("coverage", subject, item, "-", why, probe.sample() if probe else {})
    if probe is None or "probe" not in item.checks:
        return
    for name, policy in item.policies.items():
        message, details = _guarded(lambda policy=policy: check_operation(subject, probe, policy, full=full))
        yield _result("probe", subject, item, name, message, details if message else {})


@lru_cache(maxsize=4)  # who asks about an operation again, soon does
def _probe(operations: Operations, device: str, op: str) -> tuple[Probe | None, str]:
    """An operation's probe, or why there is none."""
    if op not in operations.names():
        return None, f"the adapter binds no function for {op}"
    if op not in cases():
        return None, f"there is no example call for {op}"
    probe = Probe(cases()[op], operations, device)
    try:
        probe.ready()
    except Unsuitable as error:
        return None, str(error)
    except Exception as error:
        return None, f"its example call fails outside any region: {type(error).__name__}: {error}"
    return probe, ""


def _network(subject: Subject, item: Item, full: bool) -> Iterator[Result]:
    reference = _reference(subject, item.subject)
    for name, policy in item.policies.items():
        try:
            outcomes = check_network(subject, reference, policy)
        except Exception as error:
            outcomes = dict.fromkeys(item.checks, _last_words(error))
        for check in item.checks:
            yield _result(check, subject, item, name, *outcomes[check])


@cache
def _reference(subject: Subject, network: str) -> Reference:
    return Reference(NETWORKS[network], subject.operations, subject.device)


def _behaviour(subject: Subject, item: Item, full: bool) -> Iterator[Result]:
    for name, policy in item.policies.items():
        message, details = _guarded(lambda policy=policy: (BEHAVIOURS[item.subject](subject, policy.dtype), {}))
        yield _result("behaviour", subject, item, name, message, details)


def _training(subject: Subject, item: Item, full: bool) -> Iterator[Result]:
    network, steps = NETWORKS[item.subject], STEPS if full else QUICK[item.subject]
    for name, policy in item.policies.items():
        message, details = _guarded(lambda policy=policy: check_training(subject, network, policy, steps))
        yield _result("training", subject, item, name, message, details)


def _guarded(check: Callable[[], tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    try:
        return check()
    except Exception as error:
        return _last_words(error)


def _last_words(error: Exception) -> tuple[str, dict[str, Any]]:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}", {"traceback": traceback.format_exc()[-3000:].splitlines()}


def _sayable(result: Result) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if value not in ("", {}, 0.0)}


if __name__ == "__main__":
    main()
