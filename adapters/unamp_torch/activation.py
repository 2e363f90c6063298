"""Putting a plan in force in the calling thread, and taking it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from unamp_torch import exporting as exports
from unamp_torch import functions, hooks
from unamp_torch.compiling import Token
from unamp_torch.plans import Plan
from unamp_torch.state import NATIVE_KEYS, SLOT, excluded, set_excluded, set_included, thread

__all__ = ["Activation"]


class Activation:
    """`unamp.adapter.Realisation` for PyTorch: a plan, with the settings of native autocast and of the dispatcher."""

    __slots__ = ("_functions", "_intercepts", "_native", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._native = tuple((device, NATIVE_KEYS[device]) for device in plan.devices)
        self._intercepts = plan.intercepts
        self._functions = bool(functions.named(plan.policy))

    def enter(self) -> object:
        """Put the plan in force."""
        plan, outer = self.plan, thread.plan
        # First what can fail, while nothing has changed yet.
        if outer is None:
            hooks.acquire()
        if self._functions:
            functions.acquire(plan.policy)
        before = [(device, key, excluded(key), torch.get_autocast_dtype(device)) for device, key in self._native]
        shares = plan.autocast and plan.policy.cache and self._may_cache(outer, before)
        caching, weights = torch.is_autocast_cache_enabled(), thread.weights
        for device, key, off, dtype in before:
            if off is plan.autocast:
                set_excluded(key, not plan.autocast)
            if dtype is not plan.low and plan.autocast:
                torch.set_autocast_dtype(device, plan.low)
        if caching is not shares:
            torch.set_autocast_cache_enabled(shares)
        torch.autocast_increment_nesting()
        thread.weights = (weights if weights is not None else {}) if plan.policy.cache else None
        thread.plan = plan
        if thread.sink is None:
            set_included(SLOT, self._intercepts)
        carriers = plan.token if outer is None else (*outer.token, *plan.token)
        if carriers:
            before += ((device, key, excluded(key), torch.get_autocast_dtype(device)) for device, key, _ in carriers)
            _carry(outer.token if outer is not None else (), on=False)
            _carry(plan.token, on=True)
        exporting = torch.compiler.is_exporting()
        if exporting:
            exports.acquire()
        return outer, weights, caching, shares and outer is None, before, exporting

    def exit(self, token: Any) -> None:
        """Put back what `enter` found."""
        outer, weights, caching, shared, before, exporting = token
        if exporting:
            exports.release()
        thread.plan, thread.weights = outer, weights
        if thread.sink is None:
            set_included(SLOT, outer is not None and outer.intercepts)
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        if caching is not torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(caching)
        for device, key, off, dtype in reversed(before):
            set_excluded(key, off)
            if torch.get_autocast_dtype(device) is not dtype:
                torch.set_autocast_dtype(device, dtype)
        if shared:
            hooks.stop_sharing(self.plan.low)
        if self._functions:
            functions.release(self.plan.policy)
        if outer is None:
            hooks.release()

    def _may_cache(self, outer: Plan | None, before: list[tuple[str, Any, bool, torch.dtype]]) -> bool:
        # Native autocast keeps one cache of cast parameters for all threads, and does not look at their dtype. It is used only
        # where all that can be in it has this plan's.
        low = self.plan.low
        if outer is not None:
            return outer.low is low and torch.is_autocast_cache_enabled()
        if any(not off and dtype is not low for _, _, off, dtype in before):
            return False  # inside somebody else's region, of another dtype
        return hooks.start_sharing(low)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The plan in force, as a context manager."""
        token = self.enter()
        try:
            yield
        finally:
            self.exit(token)


def _carry(token: Token, *, on: bool) -> None:
    for device, key, dtype in token:
        set_excluded(key, not on)
        if on:
            torch.set_autocast_dtype(device, dtype)
