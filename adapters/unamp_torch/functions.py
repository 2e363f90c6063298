"""Operations that PyTorch writes in Python, as a function or a layer made of several operators.

The dispatcher never sees such an operation as one, so its parts follow their own rules. That agrees with its own rule unless
somebody names it: then, while such a region is open, the function is replaced by one that runs it whole under the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional

from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_torch import kernels
from unamp_torch.casting import cast_floats
from unamp_torch.facts import facts
from unamp_torch.state import lock, thread

__all__ = ["acquire", "composed", "named", "release"]


class Place(NamedTuple):
    """Where a function is looked up when it is called: the attribute of a module or class."""

    owner: Any
    name: str


@cache
def composed(op: str) -> tuple[Place, ...]:
    """Where the function of an operation is that is written in Python; nothing for all other operations."""
    entry = vocabulary()[op]
    if op in facts().functions:
        return tuple(_place(path) for path in facts().functions[op])
    if entry.keeps_its_meaning or entry.members or kernels.operators(op):
        return ()
    spellings = entry.spellings.get("torch", ())
    functions = [_place(spelling) for spelling in spellings if spelling.startswith("nn.functional.")]
    layers = [_place(f"{spelling}.forward") for spelling in spellings if spelling.count(".") == 1]
    return tuple(functions or layers)  # a layer calls its function, where it has one


def _place(path: str) -> Place:
    *owner, name = path.split(".")
    return Place(functools.reduce(getattr, owner, torch), name)


#: Layers that write into a result of their input's dtype.
_WRITING = ("adaptive_log_softmax",)


@functools.lru_cache(maxsize=256)
def named(policy: Policy) -> tuple[tuple[str, Place], ...]:
    """What a policy names of them: nothing, for nearly all policies.

    Layers that write into their result count as named where all operations run low: the result's dtype is their input's.
    """
    blanket = policy.active and policy.level in ("O2", "O3")
    layers = [op for op in _WRITING if blanket]
    ops = dict.fromkeys((*policy.allow, *policy.deny, *layers))
    return tuple((op, place) for op in ops for place in composed(op))


_lock = lock()
_users: dict[Place, int] = {}
_originals: dict[Place, Any] = {}


def acquire(policy: Policy) -> None:
    """Replace the functions that a policy names; `release` puts them back with the last region that needs them."""
    with _lock:
        for op, place in named(policy):
            _users[place] = _users.get(place, 0) + 1
            if _users[place] == 1:
                _originals[place] = getattr(place.owner, place.name)
                setattr(place.owner, place.name, _replacement(op, _originals[place]))


def release(policy: Policy) -> None:
    """The counterpart of `acquire`."""
    with _lock:
        for _, place in named(policy):
            _users[place] -= 1
            if _users[place] == 0:
                setattr(place.owner, place.name, _originals.pop(place))


@functools.lru_cache(maxsize=64)
def _replacement(op: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def whole(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        rule = Rule.UNTOUCHED if plan is None or plan.delegated else plan.policy.rules[op]
        if rule not in (Rule.LOW, Rule.FP32):
            return original(*args, **kwargs)
        with plan.inside(_everything(rule, plan.policy.dtype)):  # type: ignore[union-attr]
            dtype = plan.low if rule is Rule.LOW else torch.float32  # type: ignore[union-attr]
            args = tuple(cast_floats(arg, dtype) for arg in args)
            return original(*args, **{name: cast_floats(arg, dtype) for name, arg in kwargs.items()})

    # A compiler calls it as it is, while it traces, instead of following it to the thread's state.
    return torch.compiler.allow_in_graph(whole)  # type: ignore[no-any-return]


@cache
def _everything(rule: Rule, dtype: str) -> Policy:
    """The policy that runs every operation low, or every one in float32."""
    if rule is Rule.LOW:
        return Policy("O3", dtype)
    return Policy("OD", dtype, deny=tuple(preset("unamp").allow))
