"""The places where PyTorch's own Python code must know about regions, patched while a region is open.

Each is a module attribute that PyTorch looks up at every call. `acquire` puts the patches in with the first open region of
the process, `release` takes them out with the last. A patched function asks first whether the calling thread is in a
region, so that other threads see the original.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint

from unamp.errors import FrameworkNotSupported
from unamp.regions import innermost_region
from unamp_torch import compiling, exporting
from unamp_torch.state import SLOT, lock, set_included, thread

__all__ = ["HOOKS", "Hook", "acquire", "probe", "release", "start_sharing", "stop_sharing", "suspended"]


@dataclass(frozen=True)
class Hook:
    """One patched attribute: its module, its name, and what replaces it given the original.

    PyTorch imports some of these modules when they are first needed, which can be inside a region: `_Imports` waits for them.
    """

    module: str
    name: str
    replacement: Callable[[Any], Any]


@contextmanager
def suspended():  # type: ignore[no-untyped-def]
    """No policy is in force in this thread, and native autocast is off."""
    plan, thread.plan = thread.plan, None
    set_included(SLOT, False)
    try:
        with torch._C._DisableAutocast():
            yield
    finally:
        thread.plan = plan
        set_included(SLOT, plan is not None and (plan.intercepts or thread.sink is not None))


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    # Backward runs in the dtype of its forward. With a region open around it, the operators that compute gradients would
    # otherwise be cast like any others.
    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None or thread.plan.delegated:
            return original(*args, **kwargs)
        with suspended():
            return original(*args, **kwargs)

    return run_backward


def _recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    region = innermost_region()
    if region is None:
        return function

    @functools.wraps(function)
    def in_region(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return in_region


def _reentrant_checkpoint(original: Any) -> Any:
    # Checkpointing remembers native autocast's state for the recomputation, and not ours.
    class CheckpointFunction(original):  # type: ignore[misc]
        @classmethod
        def apply(cls, function: Callable[..., Any], *args: Any) -> Any:
            return original.apply(_recomputed(function), *args)

    return CheckpointFunction


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(_recomputed(function), *args, **kwargs)

    return generator


def _jit_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    # A cached cast would be traced as a constant that requires grad, which the tracer refuses.
    @functools.wraps(original)
    def trace(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(*args, **kwargs)
        kept, thread.weights = thread.weights, None
        caching = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        try:
            return original(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(caching)
            thread.weights = kept

    return trace


HOOKS = (
    Hook("torch.autograd", "_engine_run_backward", _backward),
    Hook("torch.autograd.graph", "_engine_run_backward", _backward),
    Hook("torch.utils.checkpoint", "CheckpointFunction", _reentrant_checkpoint),
    Hook("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator", _checkpoint),
    Hook("torch.jit._trace", "_trace_impl", _jit_trace),
    Hook("torch.export._trace", "_export", exporting.recording),
    Hook("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", compiling.cache_key),
)

_lock = lock()
_open = 0
_shared: dict[torch.dtype, int] = {}
_prepared: dict[Hook, tuple[dict[str, Any], Any, Any]] = {}  # the module's namespace, the original, the replacement


def probe() -> None:
    """Check that every hook's attribute is where it is expected, in the modules that are imported.

    Raises:
        FrameworkNotSupported: naming the version of PyTorch and the missing attribute.
    """
    for hook in HOOKS:
        module = sys.modules.get(hook.module)
        if module is not None and not hasattr(module, hook.name):
            raise _missing(hook)


def _missing(hook: Hook) -> FrameworkNotSupported:
    return FrameworkNotSupported(f"torch {torch.__version__} has no {hook.module}.{hook.name}, which unamp needs")


def acquire() -> None:
    """A region opens in some thread."""
    global _open
    with _lock:
        if _open == 0:
            try:
                for hook in HOOKS:
                    _patch(hook)
            except BaseException:
                _take_out()
                raise
            if len(_prepared) < len(HOOKS):
                sys.meta_path.insert(0, _imports)
        _open += 1


def release() -> None:
    """A region closes."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            _take_out()


def start_sharing(dtype: torch.dtype) -> bool:
    """Whether native autocast's cache, which all threads share, can be used for casts to `dtype`; if so, it is from now on."""
    with _lock:
        if any(other is not dtype for other in _shared):
            return False
        _shared[dtype] = _shared.get(dtype, 0) + 1
        return True


def stop_sharing(dtype: torch.dtype) -> None:
    """The counterpart of `start_sharing`, where that was true."""
    with _lock:
        _shared[dtype] -= 1
        if not _shared[dtype]:
            del _shared[dtype]
            torch.clear_autocast_cache()


def _take_out() -> None:
    if _imports in sys.meta_path:
        sys.meta_path.remove(_imports)
    for hook, (namespace, original, replacement) in _prepared.items():
        # Somebody who patched on top of us keeps their patch: ours, below it, does nothing outside regions.
        if namespace[hook.name] is replacement:
            namespace[hook.name] = original


def _forget_other_threads() -> None:
    # In a forked process the threads that had regions open do not exist; the forking thread has closed its own.
    global _open
    _shared.clear()
    if _open:
        _open = 1
        release()


os.register_at_fork(after_in_child=_forget_other_threads)


def _patch(hook: Hook) -> None:
    prepared = _prepared.get(hook)
    if prepared is None:
        module = sys.modules.get(hook.module)
        if module is None:
            return
        prepared = module.__dict__, None, None
    namespace, original, replacement = prepared
    try:
        current = namespace[hook.name]
    except KeyError:
        raise _missing(hook) from None
    if current is replacement:
        return
    if current is not original:
        original, replacement = current, hook.replacement(current)
        _prepared[hook] = namespace, original, replacement
    namespace[hook.name] = replacement


class _Imports(importlib.abc.MetaPathFinder):
    """Patches a hook's module as soon as it is imported inside a region."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if not any(hook.module == fullname for hook in HOOKS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        spec = module.__spec__
        spec.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        with _lock:
            if _open:
                for hook in HOOKS:
                    if hook.module == spec.name:
                        _patch(hook)


_imports = _Imports()
