"""The state of a thread, and the dispatch keys that unamp's kernels are registered on.

PyTorch's dispatcher sends an operator to a kernel on one of these keys only in threads that include
the key, and only if the operator has a kernel there: everywhere else, and for every other operator,
they cost nothing.

Why these keys. They must lie above the Autocast keys, so that a rule of ours is carried out before
the native one, and above functorch's, because a kernel written in Python below those cannot be
called with a Python scalar inside `torch.func` ("Cannot access data pointer"). Nothing in PyTorch
uses them: c10 reserves them for tests of that mechanism, which cannot run in the same process as
user code.

Why more than one. PyTorch has no safe way to take a kernel away, so an operator that once has one
keeps it. `FEW` is for policies that differ from native autocast in some operations, `MANY` for
those that take nearly all of them over (O2, O3, OD): with one key for both, operations that a
policy of the first kind leaves alone would pass through kernels with nothing to do. `TRACED` is for
`unamp.trace`, whose kernels are always in Python; where no kernels are compiled, `MANY` is the same
key. The compiled kernels on `MANY` lie below functorch's keys, as native autocast's do, on a key
that c10 reserves for a mechanism outside of PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import NamedTuple

import torch

from unamp._forking import at_fork
from unamp._function_types import Function
from unamp.adapter import state
from unamp.adapter.patching import missing
from unamp.policy import Policy, Rule
from unamp_torch.compiled import library


def dispatch_key(name: str) -> torch._C.DispatchKey:
    """Return a dispatch key of PyTorch's by its name.

    Raises:
        FrameworkNotSupported: where this version of PyTorch has none of that name.
    """
    key = torch._C._parse_dispatch_key(name)
    if key is None:
        raise missing("torch", torch.__version__, f"dispatch key {name}")
    return key


class KernelKey(NamedTuple):
    """A dispatch key for kernels of ours, by its name and as PyTorch's object."""

    name: str
    key: torch._C.DispatchKey


FEW, TRACED, _BELOW_FUNCTORCH = (
    KernelKey(name, dispatch_key(name))
    for name in ("TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper", "DeferredInit")
)
MANY = TRACED if library is None else _BELOW_FUNCTORCH
KERNEL_KEYS = tuple(dict.fromkeys((FEW, MANY, TRACED)))

CPU, CUDA, META = "cpu", "cuda", "meta"

#: The key on which the compiled kernels for meta tensors find those in Python. No tensor has it:
#: of three keys for backends from outside, PyTorch gives tensors the first alone.
META_IN_PYTHON = dispatch_key("AutogradPrivateUse3").name

#: The dispatch keys of the native autocast kernels.
NATIVE_KEYS = {CPU: torch._C.DispatchKey.AutocastCPU, CUDA: torch._C.DispatchKey.AutocastCUDA}


@cache
def autocast_key(device_type: str) -> torch._C.DispatchKey | None:
    """Return native autocast's dispatch key of a device type; None where it has none (meta)."""
    if device_type == torch._C._get_privateuse1_backend_name():
        return torch._C._parse_dispatch_key("AutocastPrivateUse1")
    return torch._C._parse_dispatch_key(f"Autocast{device_type.upper()}")


#: PyTorch's dtypes that rules cast, by their names.
DTYPES = state.Dtypes(
    "torch", {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
)
LOW = (torch.float16, torch.bfloat16)

excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
included = torch._C._dispatch_tls_is_dispatch_key_included
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
set_included = torch._C._dispatch_tls_set_dispatch_key_included


def without_kernels(key: torch._C.DispatchKey) -> AbstractContextManager[object]:
    """Skip the kernels on a dispatch key in this thread while the returned context is open."""
    guard: AbstractContextManager[object] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(key)
    )
    return guard


#: The settings by which `torch.compile` tells plans apart: device types, each with its autocast's
#: dispatch key, the dtype to set, and its usual dtype. See `unamp_torch.compiling`.
Guard = tuple[tuple[str, torch._C.DispatchKey, torch.dtype, torch.dtype], ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """A policy made ready for PyTorch, as far as the modules below `unamp_torch.plans` know it.

    The whole is `unamp_torch.plans.Plan`.

    Attributes:
        policy: the policy.
        low: its low dtype.
        devices: the device types that it covers.
        autocast: whether native autocast is on.
        delegated: whether it is PyTorch's own AMP and nothing else (preset ``native``).
        actions: for each device type the actions for operators that need more than native autocast,
            by the operator's name. On devices other than the CPU and CUDA, kernels of ours carry
            out every rule that changes anything.
        guard: the settings by which `torch.compile` tells the plan from others.
        device: the kind of device that was asked for; None for all.
        beside: the plan around it, which stays in force on devices that this one does not cover.
        key: the dispatch key that has the kernels for those operators.
        is_complete: whether `actions` has every operator that has a rule (see `complete`).
    """

    policy: Policy
    low: torch.dtype
    devices: tuple[str, ...]
    autocast: bool
    delegated: bool = False
    actions: Mapping[str, Mapping[str, Function]] = field(default_factory=dict)
    guard: Guard = ()
    device: str | None = None
    key: KernelKey = FEW
    beside: Plan | None = None
    is_complete: bool = False

    def low_on(self, device: str, /) -> torch.dtype:
        """Return the low dtype for a device type."""
        around = self.beside
        return (
            around.low_on(device) if around is not None and device not in self.devices else self.low
        )

    def rule(self, op: str, /) -> Rule:
        """Return the rule in force for an operation.

        For PyTorch's own AMP, it is the rule of PyTorch's lists for the first device.
        """
        stated = self.policy.delegated("torch", self.devices[0])
        return stated.rules[op] if stated is not None else Rule.UNTOUCHED

    def policy_on(self, device: str, /) -> Policy | None:
        """Return the policy in force on a device type, the plan's or one around it; else None."""
        plan: Plan | None = self
        while plan is not None and device not in plan.devices:
            plan = plan.beside
        return None if plan is None else plan.policy

    @cached_property
    def intercepted(self) -> frozenset[str]:
        """The operators that need a kernel on the plan's key; those on meta have their own key."""
        seen = self.actions if self.key is TRACED else NATIVE_KEYS
        return frozenset().union(*(self.actions.get(device, {}) for device in seen))

    @property
    def complete(self) -> Plan:
        """The same plan with our kernels for every rule, also where native autocast follows it."""
        raise NotImplementedError

    @property
    def compiled(self) -> object:
        """The actions as the compiled kernels take them; None where there are none."""
        raise NotImplementedError


class Thread(state.ThreadState[Plan]):
    """One thread's state; see `unamp.adapter.state.ThreadState` for the other attributes.

    Attributes:
        weights: casts of float32 parameters made in the outermost region, by the parameter's id,
            each with the parameter itself (so that the id stays its own) and the version that was
            cast. None where nothing is to be kept.
        emulated: whether the operation that is being reported was emulated.
        forward_region: the region of the forward of the operator whose backward pass is running;
            see `control_flow`.
        transforms: the levels of `torch.func` that were entered in a region, each with the plan to
            go back to.
        step: the optimizer's step that is running in a region; see `stepping`.
    """

    # Set here, so that each thread's own dictionary has them from the start: compiled regions read
    # and write them there, several times faster than by attribute.
    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.sink = None
        self.weights: dict[int, tuple[torch.Tensor, int, torch.Tensor]] | None = None

    emulated: bool = False
    forward_region: AbstractContextManager[object] | None = None
    transforms: Mapping[int, Plan] = MappingProxyType({})
    step: state.Step | None = None


thread = Thread()


def include_kernels(plan: Plan | None) -> None:
    """Include the key of a plan's kernels in this thread, and no other.

    While `unamp.trace` is open, that is `TRACED`. A plan without actions has a key, too: kernels
    for writes to parameters run in every region (`unamp_torch.writes`).
    """
    if thread.sink is not None:
        wanted: KernelKey | None = TRACED
    else:
        wanted = plan.key if plan is not None else None
    for each in KERNEL_KEYS:
        set_included(each.key, each is wanted)
    if library is not None:
        library.set_traced(thread.sink is not None)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without PyTorch's: ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def lock() -> threading.RLock:
    """Return a lock that a forked process finds free: only the forking thread holds it then."""
    made = threading.RLock()
    at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
