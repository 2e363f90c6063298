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
        if self._functions:
            functions.acquire(plan.policy)
        thread.plan = plan
        if thread.sink is None:
            set_included(SLOT, self._intercepts)
        before.extend((device, key, excluded(key), torch.get_autocast_dtype(device)) for device, key, _ in plan.token)
        if outer is not None:
            _carry(outer.token, on=False)
        _carry(plan.token, on=True)
        exporting = torch.compiler.is_exporting()
        if exporting:
            exports.acquire()
        return outer, weights, caching, before, exporting

    def exit(self, token: Any) -> None:
        """Put back what `enter` found."""
        outer, weights, caching, before, exporting = token
        if exporting:
            exports.release()
        thread.plan, thread.weights = outer, weights
        if thread.sink is None:
            set_included(SLOT, outer is not None and outer.intercepts)
        _carry(self.plan.token, on=False)
        if outer is not None:
            _carry(outer.token, on=True)
        if outer is None:
            hooks.release()
        if self._functions:
            functions.release(self.plan.policy)
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        if caching is not torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(caching)
        for device, key, off, dtype in before:
            set_excluded(key, off)
            if torch.get_autocast_dtype(device) is not dtype:
                torch.set_autocast_dtype(device, dtype)

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
