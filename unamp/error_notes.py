"""Notes on errors that a framework raises because of the dtypes that a policy chose.

At O2 and O3 nearly everything runs low, also what a user, or a library, computes with float32 in
mind: boxes of a detection network that are compared with float32 ones, a mask, a call into NumPy.
The framework's error says which dtypes do not fit, and not where they come from. When it leaves a
region, the region adds a note: its policy, the tensors that were at hand, and what to deny. Nothing
here runs while there is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from traceback import walk_tb
from types import TracebackType
from typing import Any

from unamp.adapter import Adapter, TellsOfDtypes
from unamp.adapter.framework_types import Tensor
from unamp.dtypes import ELIGIBLE, FLOAT32
from unamp.policy import Policy, Rule
from unamp.presets import preset

_BEGINS = "unamp: "
_LEVELS = ("O2", "O3")

_MOST_TENSORS = 6
_MOST_STEPS = 16  # from a tensor back to an operation that a rule decided


def explain(
    error: BaseException, trace: TracebackType | None, policy: Policy, adapters: Iterable[Adapter]
) -> None:
    """Add a note to an error about dtypes, once; leave other errors alone."""
    if (
        policy.level not in _LEVELS
        or not policy.active
        or policy.dtype == FLOAT32
        or not isinstance(error, Exception)
    ):
        return
    if type(error).__module__.startswith("unamp") or any(
        note.startswith(_BEGINS) for note in getattr(error, "__notes__", ())
    ):
        return  # an error of ours, or one with the note of a region inside this one
    telling = [adapter for adapter in adapters if isinstance(adapter, TellsOfDtypes)]
    # The user's error must not be replaced by one that is raised while its note is written.
    with suppress(Exception):
        concerned = next((a for a in telling if re.search(a.dtype_errors, str(error))), None)
        if concerned is not None:
            error.add_note(_note(concerned, policy, trace))


def _note(adapter: Any, policy: Policy, trace: TracebackType | None) -> str:
    said, deny = [], []
    named = {*preset(policy.preset).allow, *policy.allow}
    for name, tensor in _tensors(adapter, trace):
        dtype = adapter.dtype_of(tensor)
        op = _decided(adapter, policy, tensor) if dtype == policy.dtype else None
        said.append(
            f"{name} is {dtype}" + (f" (from {op}, which the policy runs in {dtype})" if op else "")
        )
        if op and op not in named:  # an operation that a list allows is seldom meant to be float32
            deny.append(op)
    where = f" At hand: {', '.join(said)}." if said else ""
    lists = (
        f"deny={list(dict.fromkeys(deny))!r}"
        if deny
        else "deny=[...], with the operations that make it low"
    )
    return (
        f"{_BEGINS}raised inside a region of {policy!r}, where what no list names runs in "
        f"{policy.dtype}.{where} Keep this part in float32: {lists}; or "
        "unamp.autocast(enabled=False) around it, with float32 inputs. "
        "unamp.trace() shows every decision."
    )


def _decided(adapter: TellsOfDtypes, policy: Policy, tensor: Tensor) -> str | None:
    """Return the low operation that a tensor comes from, the nearest one; None where unknown."""
    ops = islice(adapter.made_by(tensor), _MOST_STEPS)
    return next((op for op in ops if policy.rules.get(op) is Rule.LOW), None)


def _tensors(adapter: Adapter, trace: TracebackType | None) -> list[tuple[str, Tensor]]:
    """Return the named floating tensors of the innermost frame of user code that has any."""
    own = (adapter.framework, "unamp", f"unamp_{adapter.framework}")
    frames = [
        frame
        for frame, _ in walk_tb(trace)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in own
    ]
    for frame in reversed(frames):
        found = [
            (name, tensor)
            for name, tensor in _named(adapter, frame.f_locals)
            if adapter.is_tensor(tensor) and adapter.dtype_of(tensor) in ELIGIBLE
        ]
        if found:
            return found[:_MOST_TENSORS]
    return []


def _named(adapter: object, variables: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in variables.items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}[{n}]", item) for n, item in enumerate(value[:_MOST_TENSORS]))
        elif type(value) is dict:
            yield from (
                (f"{name}[{key!r}]", item) for key, item in islice(value.items(), _MOST_TENSORS)
            )
        else:
            yield name, value
