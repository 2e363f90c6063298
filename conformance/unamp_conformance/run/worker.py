"""The process of one framework: it does items as ordered, and reports in lines of JSON.

`unamp_conformance.run.processes` starts it as ``python -m unamp_conformance.run.worker``. The first
line on standard input says which framework and device to open; every other line orders an item.
Reports go to a pipe of their own, because frameworks print to the standard streams. A report names
each check before it begins, so that a check in which the framework dies is known.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

from unamp.adapter import Operations, machine
from unamp.adapter.absent_devices import Unreadable
from unamp.cli.arguments import module_named
from unamp.policy import Policy, Rule
from unamp.presets import PRESETS
from unamp.vocabulary import vocabulary
from unamp_conformance.check.absentchecks import check_program
from unamp_conformance.check.absentprobes import AbsentProbe
from unamp_conformance.check.behaviours import BEHAVIOURS
from unamp_conformance.check.cases import Case, cases
from unamp_conformance.check.layerchecks import check_layers
from unamp_conformance.check.netbounds import Reference
from unamp_conformance.check.netchecks import Outcome, check_network
from unamp_conformance.check.networks import NETWORKS, Lacking
from unamp_conformance.check.opchecks import Unsaid, check_operation
from unamp_conformance.check.probes import Probe, Unsuitable
from unamp_conformance.check.tensorchecks import check_tensors
from unamp_conformance.check.training import QUICK, STEPS, check_training
from unamp_conformance.check.ways import check_way
from unamp_conformance.results import Finding, Result, sayable
from unamp_conformance.run.drawing import drawn, told
from unamp_conformance.run.plan import Item, Selection, items, items_to_read
from unamp_conformance.subjects import SECOND, Subject, WithExamples

__all__ = ["main", "perform", "planned", "probe_of"]

Say = Callable[..., None]
# for each check: the fault, empty where there is none, and the observations
Outcomes = Mapping[str, Outcome]


def main() -> None:
    """Read the orders, do them, and report."""
    orders = json.loads(sys.stdin.readline())
    pipe = os.fdopen(orders["pipe"], "w", encoding="utf-8", buffering=1)

    def say(event: str, **facts: Any) -> None:
        pipe.write(json.dumps({"event": event, **facts}) + "\n")

    warnings.simplefilter("ignore")  # a framework's warnings are not under test
    subject = Subject(orders["framework"], orders["device"])
    try:
        _ = subject.adapter
        for module in orders["imports"]:
            module_named(module)
        selection = Selection.from_dict(orders["selection"])
        # opened here, because an adapter may have to configure the framework before it computes
        _ = subject.operations
        facts = {"facts": machine.facts(subject.adapter), "variables": machine.variables()}
        there = {
            "present": subject.present(),
            "devices": subject.devices(),
            "missing": subject.missing(),
        }
        say("opened", version=subject.adapter.version(), **there, **facts)
    except Exception as error:
        return say("unusable", why=f"{type(error).__name__}: {error}")
    if not subject.present():
        return None
    gc.freeze()  # imported objects stay alive: collections need not scan them
    # traces and programs are many objects that stay alive: frequent collections would be slow
    gc.set_threshold(50_000, 20, 20)
    plan = planned(subject, selection)
    work = drawn(plan, selection, few=subject.device in subject.absent_devices)
    draw = told(work, plan, selection.seed) if selection.draws else ""
    say("planned", items=[item.as_dict() for item in work], draw=draw)
    for line in sys.stdin:
        order = json.loads(line)
        _do(subject, work[order["item"]], order["without"], selection.full, say)
        say("finished", item=order["item"])
    return None


def planned(subject: Subject, selection: Selection) -> list[Item]:
    """Return the items of a selection on a framework, with the ways that its adapter lists."""
    sparing = getattr(subject.operations, "dear", False)
    if subject.device in subject.absent_devices:
        return list(items_to_read(selection, subject.spelled(), sparing=sparing))
    dear = {name for name, way in subject.ways.items() if way.dear}
    chosen = {"sparing": sparing, "beside": subject.device == SECOND}
    kinds = {name: tuple(kind.calls) for name, kind in subject.tensor_kinds.items()}
    return list(items(selection, subject.spelled(), subject.ways, dear, kinds, **chosen))


def perform(
    subject: Subject, item: Item, *, without: Collection[str] = (), full: bool = False
) -> list[Result]:
    """Do one item, except for the policies that are done already.

    An exception in the item is a failure of its checks.
    """
    return [result for step in _steps(subject, item, without, full) for result in _done(step)]


@dataclass(frozen=True)
class _Step:
    """A part of an item that gives its results at once; the policy ``-`` means none."""

    policy: str
    checks: tuple[str, ...]
    do: Callable[[], Iterator[Result]]


def _do(subject: Subject, item: Item, without: Collection[str], full: bool, say: Say) -> None:
    for step in _steps(subject, item, without, full):
        say("begun", subject=item.subject, policy=step.policy, checks=step.checks)
        say("found", results=[sayable(result) for result in _done(step)])


def _done(step: _Step) -> list[Result]:
    began = time.perf_counter()
    results = list(step.do())
    seconds = round((time.perf_counter() - began) / max(len(results), 1), 6)
    return [Result(**{**vars(result), "seconds": seconds}) for result in results]


def _steps(subject: Subject, item: Item, without: Collection[str], full: bool) -> Iterator[_Step]:
    """Return the steps of an item, except for the policies that are done already.

    Policies are done already where a process died in the middle of the item.
    """
    if item.kind == "operation":
        return _operation(subject, item, without, full)
    if item.kind in ("way", "layers", "tensors"):
        return _way(subject, item, without)
    kinds: Mapping[str, Callable[[Subject, Item, Policy], Outcomes]] = {
        "network": _program if subject.device in subject.absent_devices else _network,
        "behaviour": _behaviour,
        "training": partial(_training, full=full),
    }
    do = kinds[item.kind]
    return (
        _Step(
            name,
            item.checks,
            partial(_guarded, subject, item, name, partial(do, subject, item, policy)),
        )
        for name, policy in item.policies.items()
        if name not in without
    )


def _operation(
    subject: Subject, item: Item, without: Collection[str], full: bool
) -> Iterator[_Step]:
    prepared: list[tuple[Probe | None, str]] = []

    def prepare() -> Iterator[Result]:
        prepared.append(_probe(subject, item.subject))
        (probe, why) = prepared[0]
        if "coverage" in item.checks and not without:
            yield _result("coverage", subject, item, "-", (why, probe.sample() if probe else {}))

    yield _Step("-", ("coverage",), prepare)
    (probe, why) = prepared[0]
    absent = subject.absent_devices.get(subject.device)
    if "probe" not in item.checks or (probe is None and absent is None):
        return

    thorough = _looked_at_fully(subject, item, full)

    def look(policy: Policy) -> Outcomes:
        if probe is None:
            raise Unreadable(subject.device, why)
        message, details = check_operation(subject, probe, policy, full=policy in thorough)
        return {"probe": (message, details if message else {})}

    asked = replace(item, checks=("probe",))
    for name, policy in item.policies.items():
        if name not in without:
            yield _Step(
                name, asked.checks, partial(_guarded, subject, asked, name, partial(look, policy))
            )


def _looked_at_fully(subject: Subject, item: Item, full: bool) -> set[Policy]:
    """Return the policies under which an operation is probed with every feed.

    There is one for each rule, in a dtype that is drawn by the operation's name. A full run also
    has all policies of the default preset.
    """
    dtypes = sorted({policy.dtype for policy in item.policies.values()})
    drawn = dtypes[zlib.crc32(item.subject.encode()) % len(dtypes)] if dtypes else ""
    first: dict[Rule | None, Policy] = {}
    for policy in sorted(item.policies.values(), key=lambda policy: policy.dtype != drawn):
        first.setdefault(subject.rule(policy, item.subject), policy)
    return {
        *first.values(),
        *(policy for policy in item.policies.values() if full and policy.preset == PRESETS[0]),
    }


def _way(subject: Subject, item: Item, without: Collection[str]) -> Iterator[_Step]:
    def look(name: str, policy: Policy) -> Iterator[Result]:
        try:
            if item.kind == "layers":
                found = check_layers(subject, item.way, item.subject, policy)
            elif item.kind == "tensors":
                found = check_tensors(subject, subject.tensor_kinds[item.way], item.subject, policy)
            else:
                found = check_way(subject, subject.ways[item.way], item.subject, policy)
        except Lacking as error:
            found = Finding("not applicable", f"{subject.framework} has no operation {error}")
        except Exception as error:
            found = Finding("failed", *_last_words(error))
        (check,) = item.checks
        yield Result(
            check,
            item.subject,
            name,
            subject.device,
            found.status,
            found.message,
            "",
            found.details,
            way=item.way,
        )

    if getattr(subject.operations, "collects", False):
        # What was compiled stays: it would be looked through for each graph.
        gc.collect()
        gc.freeze()
    left = ((name, policy) for name, policy in item.policies.items() if name not in without)
    return (_Step(name, item.checks, partial(look, name, policy)) for name, policy in left)


def _probe(subject: Subject, op: str) -> tuple[Probe | None, str]:
    """Return an operation's probe, or the reason why it has none.

    On an absent device, the probe reads the operation's program.
    """
    absent = subject.absent_devices.get(subject.device)
    if absent is None:
        return probe_of(subject.operations, subject.device, op)
    case, why = _bound_case(subject.operations, op)
    return None if case is None else AbsentProbe(case, subject.operations, absent), why


@lru_cache(maxsize=4)  # the policies of one operation follow each other
def probe_of(operations: Operations, device: str, op: str) -> tuple[Probe | None, str]:
    """Return an operation's probe, or the reason why it has none."""
    case, why = _bound_case(operations, op)
    if case is None:
        return None, why
    probe = Probe(case, operations, device)
    try:
        probe.ready()
    except Unsuitable as error:
        return None, str(error)
    except Exception as error:
        return None, f"its example call fails outside any region: {type(error).__name__}: {error}"
    return probe, ""


def _bound_case(operations: Operations, op: str) -> tuple[Case | None, str]:
    """Return the example call of an operation, or the reason why it cannot be probed."""
    try:
        _ = operations[op]
    except KeyError:
        return None, f"the adapter binds no function for {op}"
    case = _case(operations, op)
    return case, "" if case else f"there is no example call for {op}"


def _case(operations: Operations, op: str) -> Case | None:
    """Return an operation's example call, also of a registered operation; None without one."""
    if isinstance(operations, WithExamples) and op in operations.examples:
        example = operations.examples[op]
        return Case(op, example.args, example.attributes)
    return cases().get(op)


def _network(subject: Subject, item: Item, policy: Policy) -> Outcomes:
    return check_network(subject, _reference(item.subject), policy)


def _program(subject: Subject, item: Item, policy: Policy) -> Outcomes:
    return check_program(subject, NETWORKS[item.subject], policy)


@cache
def _reference(network: str) -> Reference:
    return Reference(NETWORKS[network])


def _behaviour(subject: Subject, item: Item, policy: Policy) -> Outcomes:
    return {"behaviour": (BEHAVIOURS[item.subject](subject, policy.dtype), {})}


def _training(subject: Subject, item: Item, policy: Policy, *, full: bool) -> Outcomes:
    steps = STEPS if full else QUICK[item.subject]
    return {"training": check_training(subject, NETWORKS[item.subject], policy, steps)}


def _result(
    check: str, subject: Subject, item: Item, policy: str, outcome: Outcome, status: str = ""
) -> Result:
    message, details = outcome
    status = status or ("failed" if message else "passed")
    return Result(check, item.subject, policy, subject.device, status, message, details=details)


def _guarded(
    subject: Subject, item: Item, policy: str, do: Callable[[], Outcomes]
) -> Iterator[Result]:
    """Yield a result for each of an item's checks.

    An exception gives the result of all of them.
    """
    status = ""
    outcomes: Outcomes
    try:
        outcomes = do()
    except Lacking as error:
        known = vocabulary().get(str(error))
        # in the vocabulary, but not bound by the adapter
        has_one = known is not None and subject.framework in known.spellings
        lacking = (
            f"the adapter binds no function for {error}"
            if has_one
            else f"{subject.framework} has no operation {error}"
        )
        status, outcomes = (
            "failed" if has_one else "not applicable",
            dict.fromkeys(item.checks, (lacking, {})),
        )
    except Unsaid as error:
        status, outcomes = "not applicable", dict.fromkeys(item.checks, (str(error), {}))
    except Unreadable as error:
        said = {"why": error.why} | ({"upstream": error.upstream} if error.upstream else {})
        status, outcomes = "not run", dict.fromkeys(item.checks, (str(error), said))
    except Exception as error:
        status, outcomes = "failed", dict.fromkeys(item.checks, _last_words(error))
    for check in item.checks:
        yield _result(check, subject, item, policy, outcomes[check], status)


def _last_words(error: Exception) -> Outcome:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}", {
        "traceback": traceback.format_exc()[-3000:].splitlines()
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # some threads of a framework (PyTorch's, for a second device) keep a process from ending
    os._exit(0)
