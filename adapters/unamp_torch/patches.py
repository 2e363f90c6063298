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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint

from unamp.adapter import major_minor
from unamp.errors import BannedOperation, FrameworkNotSupported
from unamp.regions import innermost_region
from unamp_torch import compiling, exporting, transforming
from unamp_torch.calls import NO_KERNEL
from unamp_torch.compiled import library
from unamp_torch.state import KERNEL_KEYS, include_kernels, lock, set_included, thread

__all__ = ["HOOKS", "Hook", "acquire", "probe", "release", "start_sharing", "stop_sharing", "suspended"]


class Hook(NamedTuple):
    """One patched attribute: its module, its name, and what replaces it given the original.

    PyTorch imports some of these modules when they are first needed, which can be inside a region: `_Imports` waits for them.
    """

    module: str
    name: str
    replacement: Callable[[Any], Any]


@contextmanager
def suspended() -> Iterator[None]:
    """No policy is in force in this thread, and native autocast is off."""
    plan, thread.plan = thread.plan, None
    for each in KERNEL_KEYS:
        set_included(each.key, False)
    try:
        with torch._C._DisableAutocast():
            yield
    finally:
        thread.plan = plan
        include_kernels(plan)


def _suspending(original: Callable[..., Any]) -> Callable[..., Any]:
    # Backward runs in the dtype of its forward: with a region open around it, the operators that compute gradients would
    # otherwise be cast like any others. Freezing a traced module would put TorchScript's autocast on top of the traced casts.
    @functools.wraps(original)
    def without_policy(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None or thread.plan.delegated:
            return original(*args, **kwargs)
        with suspended():
            return original(*args, **kwargs)

    return without_policy


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


# From 2.15 on torch calls the one with `_impl`; the other is left for older callers, and passes on to it.
_GENERATOR = "_checkpoint_without_reentrant_generator"
_GENERATOR += "_impl" if hasattr(torch.utils.checkpoint, f"{_GENERATOR}_impl") else ""

HOOKS = (
    Hook("torch.autograd", "_engine_run_backward", _suspending),
    Hook("torch.autograd.graph", "_engine_run_backward", _suspending),
    Hook("torch.utils.checkpoint", "CheckpointFunction", _reentrant_checkpoint),
    Hook("torch.utils.checkpoint", _GENERATOR, _checkpoint),
    Hook("torch.distributed._composable.checkpoint_activation", _GENERATOR, _checkpoint),
    Hook("torch.jit._trace", "_trace_impl", _jit_trace),
    Hook("torch._C", "_freeze_module", _suspending),
    Hook("torch.export._trace", "_export", exporting.recording),
    Hook("torch._functorch.vmap", "_vmap_increment_nesting", transforming.under_vmap),
    Hook("torch._functorch.vmap", "_vmap_decrement_nesting", transforming.without_level),
    Hook("torch._functorch.eager_transforms", "_grad_increment_nesting", transforming.under_grad),
    Hook("torch._functorch.eager_transforms", "_grad_decrement_nesting", transforming.without_level),
    Hook("torch._functorch.eager_transforms", "_jvp_increment_nesting", transforming.under_grad),
    Hook("torch._functorch.eager_transforms", "_jvp_decrement_nesting", transforming.without_level),
    Hook("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", compiling.cache_key),
)

_lock = lock()
_open = 0
_sharing: dict[torch.dtype, int] = {}

#: Before 2.11 native autocast keeps a cast made under `torch.no_grad` for later uses, which then have no gradient.
_KEEPS_WITHOUT_GRADIENT = major_minor(torch.__version__) < (2, 11)

#: The hooks whose module is imported: the module's namespace, the name, the original, and the replacement.
_ready: list[tuple[dict[str, Any], str, Any, Any]] = []
_waiting: list[Hook] = list(HOOKS)


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
            _put_in()
        _open += 1


def release() -> None:
    """A region closes."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            _take_out()


def _put_in() -> None:
    if _waiting:
        _look_for_modules()
        sys.meta_path.insert(0, _imports)
    # This is a large part of what opening a region costs: no more than a look and an assignment each.
    for place, (namespace, name, original, replacement) in enumerate(_ready):
        if namespace.get(name) is original:
            namespace[name] = replacement
        elif namespace.get(name) is not replacement:
            _replace_anew(place)


def _take_out() -> None:
    for namespace, name, original, replacement in _ready:
        # Somebody who patched on top of us keeps their patch: ours, below it, does nothing outside regions.
        if namespace.get(name) is replacement:
            namespace[name] = original
    if _imports in sys.meta_path:
        sys.meta_path.remove(_imports)


def _look_for_modules() -> None:
    for hook in [hook for hook in _waiting if hook.module in sys.modules]:
        module = sys.modules[hook.module]
        namespace = module.__dict__
        if hook.name not in namespace:
            if getattr(module.__spec__, "_initializing", False):
                continue  # in the middle of its own import, on behalf of which another of them was imported
            raise _missing(hook)
        original = namespace[hook.name]
        for _, _, hooked, replacement in _ready:
            if original is replacement:  # the module was imported inside a region, and took it from another
                original = hooked
        _ready.append((namespace, hook.name, original, hook.replacement(original)))
        _waiting.remove(hook)


def _replace_anew(place: int) -> None:
    # Somebody put something else there since we looked, or took it away.
    namespace, name, *_ = _ready[place]
    hook = next(hook for hook in HOOKS if hook.name == name and sys.modules[hook.module].__dict__ is namespace)
    if name not in namespace:
        _take_out()
        raise _missing(hook)
    original = namespace[name]
    _ready[place] = namespace, name, original, hook.replacement(original)
    namespace[name] = _ready[place][3]


def start_sharing(dtype: torch.dtype, /) -> bool:
    """Whether native autocast's cache, which all threads share, can be used for casts to `dtype`; if so, it is from now on."""
    if _KEEPS_WITHOUT_GRADIENT:
        return False
    with _lock:
        if _sharing and dtype not in _sharing:
            return False
        _sharing[dtype] = _sharing.get(dtype, 0) + 1
        return True


def stop_sharing(dtype: torch.dtype, /) -> None:
    """The counterpart of `start_sharing`, where that was true."""
    with _lock:
        if _sharing[dtype] > 1:
            _sharing[dtype] -= 1
        else:
            del _sharing[dtype]
            torch.clear_autocast_cache()


def _forget_other_threads() -> None:
    # In a forked process the threads that had regions open do not exist; the forking thread has closed its own.
    global _open
    if library is not None:
        library.forget_other_threads()
    _sharing.clear()
    if _open:
        _open = 1
        release()


os.register_at_fork(after_in_child=_forget_other_threads)


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
            if _imports in sys.meta_path:
                known = len(_ready)
                _look_for_modules()
                for namespace, name, _, replacement in _ready[known:]:
                    namespace[name] = replacement


_imports = _Imports()

if library is not None:
    # The same, compiled; what is out of the ordinary it leaves to the functions above.
    library.configure(
        tuple(each.name for each in KERNEL_KEYS),
        thread,
        torch.compiler.is_exporting,
        BannedOperation,
        NO_KERNEL,
        _ready,
        _waiting,
        _imports,
        _put_in,
        _take_out,
    )
    acquire, release = library.acquire, library.release
    start_sharing, stop_sharing = library.start_sharing, library.stop_sharing
