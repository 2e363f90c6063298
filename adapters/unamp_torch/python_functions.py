"""Operations that PyTorch writes in Python, as a function or a layer that calls several operators.

The dispatcher never sees such an operation as one, so its parts follow their own rules. That agrees
with the operation's rule unless a policy names it: while a region with that policy is open, the
function is replaced by one that casts its inputs and computes all its parts under the rule.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.nn.functional

from unamp._function_types import Function
from unamp.adapter.forwarding import forwarding
from unamp.adapter.performing import differing, places
from unamp.adapter.replacing import CodePatch, PatchGroup, Replacement
from unamp.adapter.spellings import at_path
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_torch import exempt_functions
from unamp_torch.casting import ELIGIBLE, cast_floats
from unamp_torch.compiling import call_while_tracing
from unamp_torch.facts import facts
from unamp_torch.listing import operators
from unamp_torch.plans import agree
from unamp_torch.state import lock, thread

#: Puts another policy in force on a kind of device, inside the policy in force.
Under = Callable[[Policy, str | None], AbstractContextManager[None]]


@cache
def composed(op: str) -> tuple[FunctionType, ...]:
    """Return the functions of an operation that is written in Python; none for all others."""
    entry = vocabulary()[op]
    if op in facts().functions:
        return _present(facts().functions[op])
    if op in facts().besides:
        return _present([f"nn.functional.{op}"])
    if entry.keeps_its_meaning or entry.members or operators(op):
        return ()
    spellings = entry.spellings.get("torch", ())
    named = _present(spelling for spelling in spellings if spelling.startswith("nn.functional."))
    layers = _present(f"{spelling}.forward" for spelling in spellings if spelling.count(".") == 1)
    return named or layers  # a layer calls its function, where it has one


def _present(paths: Iterable[str]) -> tuple[FunctionType, ...]:
    """Return the functions at the paths that this version of PyTorch has."""
    return tuple(function for path in paths if (function := at_path(torch, path)) is not None)


#: Functions and layers that make a tensor of their input's dtype: a result to write into,
#: or random noise.
_OF_INPUTS_DTYPE = ("adaptive_log_softmax", "gumbel_softmax")


@functools.lru_cache(KEPT_POLICIES)
def named(policy: Policy) -> tuple[tuple[str, FunctionType], ...]:
    """Return the functions that a policy names, with their operations.

    Most policies that start from PyTorch's own lists name none. Named are the operations in a
    user's lists, and four more kinds. Under another framework's lists: every function, as those
    lists know it as an operation. At O2 and O3, where all inputs are low: functions that make a
    tensor of their input's dtype (`_OF_INPUTS_DTYPE`). Functions that call other operators than
    their own, or more than their own, where those have another rule.
    """
    if not policy.active or preset(policy.preset).delegates:
        return ()
    made = _OF_INPUTS_DTYPE if policy.level in ("O2", "O3") else ()
    others = (
        op
        for op in facts().functions
        if any(_differ(policy, op, part) for part in facts().made_of.get(op, ()))
    )
    besides = (op for op, parts in facts().besides.items() if not agree(policy.rules, op, parts))
    foreign = vocabulary() if preset(policy.preset).framework != "torch" else ()
    all_others = (op for op in foreign if op not in facts().functions)
    ops = dict.fromkeys((*policy.allow, *policy.deny, *made, *others, *besides, *all_others))
    return tuple((op, function) for op in ops for function in composed(op))


def replaces(policy: Policy) -> bool:
    """Return whether a policy needs any function replaced."""
    return bool(named(policy)) or exempt_functions.reaches(policy)


def _differ(policy: Policy, op: str, part: str) -> bool:
    return policy.rules[op] in (Rule.LOW, Rule.FP32) and policy.rules[part] is not policy.rules[op]


class FunctionPatch(CodePatch):
    """A function that calls its replacement by a name in the function's module.

    PyTorch's compiler follows a name, but no function among the constants of code.

    Attributes:
        replacement: the function that is called instead.
    """

    __slots__ = ("replacement",)

    def __init__(self, op: str, function: FunctionType, make: Replacement) -> None:
        def code(original: FunctionType) -> CodeType:
            name = f"_unamp_{op}_{next(_numbers)}"
            # The name stays: a call that began before the patch was undone may look it up after.
            self.replacement = function.__globals__[name] = make(original)
            return forwarding(function, name, {})

        super().__init__(function, code)


_numbers = itertools.count()
_lock = lock()
#: A function that can be replaced, or functions that are replaced in one go.
Replaceable = FunctionType | exempt_functions.Group
_users: Counter[Replaceable] = Counter()
_made: dict[Replaceable, FunctionPatch | PatchGroup] = {}
#: Functions that are replaced, each with its operation.
Replaced = Sequence[tuple[str, Replaceable]]


def acquire(policy: Policy, under: Under) -> Replaced:
    """Replace the functions that a policy names and return them.

    `release` puts them back with the last region that needs them. A function keeps its identity and
    gets other code, so that every module which has imported it calls the replacement.
    """
    with _lock:
        needed, done = (*named(policy), *exempt_functions.functions(policy)), 0
        try:
            for op, function in needed:
                if not _users[function]:
                    patch = _made.get(function)
                    if isinstance(patch, FunctionPatch) and patch.applied:
                        patch = None  # somebody has given the function other code since
                    if patch is None:
                        patch = _made[function] = _patch(op, function, under)
                    if isinstance(patch, FunctionPatch) and op in vocabulary():
                        call_while_tracing(patch.replacement)
                    patch.apply()
                _users[function] += 1
                done += 1
        except BaseException:
            release(needed[:done])
            raise
    return needed


def _patch(op: str, function: Replaceable, under: Under) -> FunctionPatch | PatchGroup:
    """Return the patch of a function, or those of a group of functions."""
    if isinstance(function, exempt_functions.Group):
        return PatchGroup(
            FunctionPatch(kind, each, exempt_functions.replacing(kind))
            for kind, each in function.functions
        )
    make = (
        functools.partial(_under_its_rule, op, under)
        if op in vocabulary()
        else exempt_functions.replacing(op)
    )
    return FunctionPatch(op, function, make)


def release(replaced: Replaced) -> None:
    """Put back those functions that no other region needs."""
    with _lock:
        for _, function in replaced:
            _users[function] -= 1
            if not _users[function]:
                _made[function].undo()


def _under_its_rule(op: str, under: Under, original: Function) -> Function:
    """Return a function's replacement: its inputs and operations get the dtype of `op`'s rule."""
    output = places(original).get("out", sys.maxsize)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        plan = thread.plan
        if (
            plan is None
            or plan.delegated
            or (rule := plan.policy.rules[op]) in (Rule.UNTOUCHED, Rule.BANNED)
        ):
            return original(*args, **kwargs)
        if (args[output] if output < len(args) else kwargs.get("out")) is not None:
            with under(Policy(enabled=False), plan.device):
                # a cast of ``out`` would be written to, and ``out`` itself left as it is
                return original(*args, **kwargs)
        with under(of_every_operation(rule, plan.policy.dtype), plan.device):
            if rule in (Rule.WIDEST, Rule.NARROWEST):
                tensors = (
                    arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)
                )
                dtypes = [tensor.dtype for tensor in tensors if tensor.dtype in ELIGIBLE]
                dtype = differing(rule, torch.float32, dtypes) if len({*dtypes}) > 1 else None
            else:
                dtype = plan.low if rule is Rule.LOW else torch.float32
            if dtype is not None:
                args = tuple(cast_floats(arg, dtype) for arg in args)
                kwargs = {name: cast_floats(arg, dtype) for name, arg in kwargs.items()}
            return original(*args, **kwargs)

    return replacement


@cache
def of_every_operation(rule: Rule, dtype: str) -> Policy:
    """Return the policy that runs every operation low, in float32, or in its inputs' dtype."""
    if rule in (Rule.WIDEST, Rule.NARROWEST):
        return Policy(enabled=False)
    if rule is Rule.LOW:
        return Policy("O3", dtype)
    return Policy("OD", dtype, deny=tuple(preset("unamp").allow))
