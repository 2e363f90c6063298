"""Putting a plan in force in the calling thread, and taking it back."""

from __future__ import annotations

from typing import Any

import torch

from unamp_torch import hooks
from unamp_torch.plans import Plan
from unamp_torch.state import NATIVE_KEYS, SLOT, excluded, set_excluded, set_included, thread

__all__ = ["Activation"]


class Activation:
    """`unamp.adapter.Realisation` for PyTorch: a plan, with the settings of native autocast and of the dispatcher."""

    __slots__ = ("_intercepts", "_key_on", "_native", "plan")

    def __init__(self, plan: Plan, key_on: Any) -> None:
        self.plan = plan
        self._native = tuple((device, NATIVE_KEYS[device]) for device in plan.devices)
        self._intercepts = plan.intercepts
        self._key_on = key_on

    def enter(self) -> object:
        """Put the plan in force."""
        plan, outer = self.plan, thread.plan
        before = []
        for device, key in self._native:
            off, dtype = excluded(key), torch.get_autocast_dtype(device)
            before.append((device, key, off, dtype))
            if off is plan.autocast:
                set_excluded(key, not plan.autocast)
            if dtype is not plan.low and plan.autocast:
                torch.set_autocast_dtype(device, plan.low)
        caching = torch.is_autocast_cache_enabled()
        if caching is not plan.policy.cache:
            torch.set_autocast_cache_enabled(plan.policy.cache)
        torch.autocast_increment_nesting()
        weights = thread.weights
        if not plan.policy.cache:
            thread.weights = None
        elif weights is None:
            thread.weights = {}
        if outer is None:
            hooks.acquire()
        thread.plan = plan
        set_included(SLOT, self._intercepts)
        return outer, weights, caching, before

    def exit(self, token: Any) -> None:
        """Put back what `enter` found."""
        outer, weights, caching, before = token
        thread.plan, thread.weights = outer, weights
        set_included(SLOT, outer is not None and outer.intercepts)
        if outer is None:
            hooks.release()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        if caching is not torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(caching)
        for device, key, off, dtype in before:
            set_excluded(key, off)
            if torch.get_autocast_dtype(device) is not dtype:
                torch.set_autocast_dtype(device, dtype)
