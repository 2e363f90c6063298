"""Put a plan in force in the calling thread, and take it out of force again.

The same in C++ is `compiled/regions.h`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import autocast_decrement_nesting as decrement_nesting
from torch import autocast_increment_nesting as increment_nesting
from torch import clear_autocast_cache as clear_cache
from torch import get_autocast_dtype as get_dtype
from torch import is_autocast_cache_enabled as is_cache_enabled
from torch import set_autocast_cache_enabled as set_cache_enabled
from torch import set_autocast_dtype as set_dtype

from unamp.adapter import Realisation
from unamp.policy import Policy
from unamp_torch import exporting as exports
from unamp_torch import native_cache, patches, plans, python_functions, state
from unamp_torch.compiled import library
from unamp_torch.devices import registered_since
from unamp_torch.plans import install_traced, nested
from unamp_torch.state import (
    CPU,
    CUDA,
    KERNEL_KEYS,
    META,
    TRACED,
    autocast_key,
    excluded,
    set_excluded,
    set_included,
    thread,
)
from unamp_torch.transforming import for_this_level

#: A device type, its native autocast's dispatch key, whether that was excluded, and the dtype of
#: native autocast there.
Native = tuple[str, torch._C.DispatchKey, bool, torch.dtype]


class Activation:
    """A plan, put in force by settings of native autocast and of the dispatcher.

    See `unamp.adapter.Realisation`.
    """

    __slots__ = ("_native", "plan")

    def __init__(self, plan: plans.Plan) -> None:
        self._carry_out(plan)

    def _carry_out(self, plan: plans.Plan) -> None:
        self.plan = plan
        self._native = tuple(
            (device, key) for device in plan.devices if (key := autocast_key(device)) is not None
        )

    def enter(self) -> tuple[object, ...]:
        """Put the plan in force; return the settings of the thread that `exit` puts back."""
        if self.plan.device is None and registered_since(self.plan.devices):
            self._carry_out(plans.plan(self.plan.policy, None))
        outer = thread.plan
        combined = (
            self.plan
            if outer is None or outer.devices == self.plan.devices
            else nested(outer, self.plan)
        )
        plan = for_this_level(combined)
        # What can fail comes first, while nothing has changed yet.
        if thread.sink is not None:
            install_traced(plan)
        # Where operators are recorded above autocast, handlers carry the rules out.
        recorded = exports.records_above()
        if recorded:
            exports.acquire()
        try:
            if outer is None:
                patches.acquire()
        except BaseException:
            if recorded:
                exports.release()
            raise
        before = [(device, key, excluded(key), get_dtype(device)) for device, key in self._native]
        caching, weights = is_cache_enabled(), thread.weights
        shares = plan.policy.cache and self._may_cache(outer, before) if plan.autocast else caching
        for device, key, off, dtype in before:
            if off is plan.autocast:
                set_excluded(key, not plan.autocast)
            if dtype is not plan.low and plan.autocast:
                set_dtype(device, plan.low)
        if caching is not shares:
            set_cache_enabled(shares)
        # As torch.autocast counts: one that closes inside must not clear the cache of casts.
        increment_nesting()
        # An inner region goes on with the casts of the outer one.
        if weights is None or not plan.policy.cache:
            thread.weights = {} if plan.policy.cache else None
        thread.plan = plan
        if outer is not None:
            _switch(outer, on=False)
        _switch(plan, on=True)
        # Only an outermost region has started to share native autocast's cache (`_may_cache`).
        shared = shares and outer is None and plan.autocast
        return outer, weights, caching, shared, before, recorded

    def exit(self, token: Any) -> None:
        outer, weights, caching, shared, before, recorded = token
        plan = thread.plan
        if recorded:
            exports.release()
        thread.plan, thread.weights = outer, weights
        if plan is not None:
            _switch(plan, on=False)
        if outer is not None:
            _switch(outer, on=True)
        if decrement_nesting() == 0:
            clear_cache()
        set_cache_enabled(caching)
        for device, key, off, dtype in reversed(before):
            set_excluded(key, off)
            if dtype is not self.plan.low:
                set_dtype(device, dtype)
        if shared:
            native_cache.stop_sharing(self.plan.low)
        if outer is None:
            patches.release()

    def _may_cache(self, outer: state.Plan | None, before: list[Native]) -> bool:
        """Return whether native autocast may keep casts of parameters.

        Its one cache serves all threads, and finds a cast by the parameter, whatever the dtype. So
        it is used only while every cast in it has this plan's low dtype.
        """
        low = self.plan.low
        if outer is not None:
            return outer.low is low and is_cache_enabled()
        for _, _, off, dtype in before:
            if not off and dtype is not low:
                return False  # inside somebody else's region, of another dtype
        return native_cache.start_sharing(low)


@contextmanager
def _under(policy: Policy, device: str | None) -> Iterator[None]:
    """Put `policy` in force on a kind of device, inside the policy in force, while open."""
    made = _replacing(Activation(plans.plan(policy, device)), policy)
    token = made.enter()
    try:
        yield
    finally:
        made.exit(token)


def _switch(plan: state.Plan, *, on: bool) -> None:
    """Switch a plan's dispatch key and guard (`Plan.guard`) on or off."""
    for device, key, dtype, usual in plan.guard:
        set_excluded(key, not on)
        if dtype is not usual:
            set_dtype(device, dtype if on else usual)
    if thread.sink is None:  # else the key of the trace stays included, and no other
        set_included(plan.key.key, on)
    if on and library is not None:
        library.set_plan(plan.compiled)


class _Replacing:
    """An activation that also replaces the Python functions which its policy names."""

    __slots__ = ("_activation", "_policy")

    def __init__(self, activation: Realisation, policy: Policy) -> None:
        self._activation, self._policy = activation, policy

    def enter(self) -> tuple[object, python_functions.Replaced]:
        # Kept in the token: at the exit, classes defined meanwhile would be among the functions.
        replaced = python_functions.acquire(self._policy, _under)
        try:
            return self._activation.enter(), replaced
        except BaseException:
            python_functions.release(replaced)
            raise

    def exit(self, token: Any) -> None:
        entered, replaced = token
        self._activation.exit(entered)
        python_functions.release(replaced)


def _replacing(activation: Realisation, policy: Policy) -> Realisation:
    return _Replacing(activation, policy) if python_functions.replaces(policy) else activation


def activation(plan: plans.Plan) -> Realisation:
    """Return the realisation of a plan: compiled, where that is built and can carry it out."""
    in_python = Activation(plan)
    # Kernels on TRACED are in Python, and the compiled ones know three device types.
    if library is None or plan.key is TRACED or not {CPU, CUDA, META}.issuperset(plan.devices):
        return _replacing(in_python, plan.policy)
    devices = sum(1 << (CPU, CUDA, META).index(device) for device in plan.devices)
    key = KERNEL_KEYS.index(plan.key)
    compiled = library.Activation(
        plan,
        plan.compiled,
        in_python,
        key,
        plan.low,
        devices,
        plan.autocast,
        plan.policy.cache,
        plan.guard,
    )
    return _replacing(compiled, plan.policy)
