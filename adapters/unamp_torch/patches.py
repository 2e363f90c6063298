"""Patches of PyTorch's Python code where it must know about regions, while a region is open.

Each is a module attribute that PyTorch looks up at every call (`HOOKS`). `acquire` patches them
with the first open region of the process, `release` undoes them with the last. A patched function
asks first whether the calling thread is in a region, so that other threads see the original.
Operations are cast elsewhere: by kernels in `calls`, and by functions in `python_functions`.

`unamp.adapter.patching.Patches` does the same for other frameworks. It does not suffice here:
PyTorch imports some of these modules when they are first needed, which can be inside a region, and
with the compiled kernels a region is opened in C++ alone (`compiled/regions.h`), for which `_ready`
is a list of plain tuples.

Every hook costs every outermost region. So there is none where something else serves: operators
that take functions have kernels of their own on our dispatch keys (`control_flow`), the functions
that leave a level of `torch.func` are patched when one is entered (`transforming`), and a hook that
only a compiler's modules call waits until these are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint

from unamp._forking import at_fork
from unamp._on_import import Loader
from unamp.adapter.patching import Patches, missing
from unamp.errors import BannedOperation, FrameworkNotSupported
from unamp_torch import (
    backward,
    compiling,
    exempt_functions,
    exporting,
    jagged,
    keras,
    native_cache,
    stepping,
    transforming,
    writes,
)
from unamp_torch.calls import NO_KERNEL, refuse_on_meta
from unamp_torch.compiled import library
from unamp_torch.lasting import LASTING
from unamp_torch.state import KERNEL_KEYS, META_IN_PYTHON, lock, thread

#: A module's namespace, the attribute's name, the original, and the replacement.
Ready = tuple[dict[str, object], str, object, object]


class Hook(NamedTuple):
    """One patched attribute.

    Attributes:
        module: the attribute's module, which need not be imported yet: `_Imports` waits for it.
        name: the attribute's name there.
        replacement: makes the replacement of the original.
        needed_with: the module without which nothing calls the attribute: patching waits for its
            import, too.
    """

    module: str
    name: str
    replacement: Callable[[Any], object]
    needed_with: str | None = None

    def awaited(self) -> str | None:
        """Return the name of a module that must be imported before patching; None where all are."""
        return next(
            (
                name
                for name in (self.module, self.needed_with)
                if name is not None and name not in sys.modules
            ),
            None,
        )


# From 2.15 on torch calls the one with `_impl`; the other is left for older callers,
# and passes on to it.
_GENERATOR = "_checkpoint_without_reentrant_generator_impl"
if not hasattr(torch.utils.checkpoint, _GENERATOR):
    _GENERATOR = "_checkpoint_without_reentrant_generator"

#: PyTorch imports it before it makes an exported program or a graph of `make_fx`: hooks that only
#: these need wait for it.
_COMPILER = "torch._dynamo"

HOOKS = (
    Hook("torch.autograd", "_engine_run_backward", backward.runs_without_policy),
    Hook("torch.autograd.graph", "_engine_run_backward", backward.runs_without_policy, _COMPILER),
    Hook("torch.autograd.profiler", "record_function", stepping.suspending_steps),
    Hook("torch.optim.optimizer", "chain", stepping.handing_policy_to_closures),
    Hook("torch.utils.checkpoint", "CheckpointFunction", backward.recomputing),
    Hook("torch.utils.checkpoint", _GENERATOR, backward.checkpointing),
    Hook("torch.distributed._composable.checkpoint_activation", _GENERATOR, backward.checkpointing),
    Hook("torch.nn.parallel.data_parallel", "parallel_apply", backward.replicating),
    Hook("torch.jit._trace", "_trace_impl", exporting.tracing),
    Hook("torch._C", "_freeze_module", backward.runs_without_policy),
    Hook("torch._lobpcg", "_lobpcg", exempt_functions.decomposing),
    Hook("torch._lowrank", "_svd_lowrank", exempt_functions.decomposing),
    # called after a compiled graph has written
    Hook("torch._C", "_increment_version", writes.dropping),
    Hook("torch._C", "_swap_tensor_impl", writes.dropping),
    # it refuses tensors that a cache of casts still refers to
    Hook("torch.utils", "swap_tensors", writes.dropping),
    Hook("torch.export._trace", "_export", exporting.exporting),
    Hook("torch.onnx", "export", exporting.to_onnx),
    Hook(
        "torch.export.exported_program",
        "_decompose_exported_program",
        backward.runs_without_policy,
        _COMPILER,
    ),
    Hook("torch.fx.experimental.proxy_tensor", "wrap_key", exporting.recording, _COMPILER),
    Hook("torch._functorch.vmap", "_vmap_increment_nesting", transforming.putting_on),
    Hook("torch._functorch.eager_transforms", "_grad_increment_nesting", transforming.putting_on),
    Hook("torch._functorch.eager_transforms", "_jvp_increment_nesting", transforming.putting_on),
    Hook("torch.autograd.forward_ad", "enter_dual_level", transforming.putting_on),
    *(Hook(*place, transforming.putting_on, _COMPILER) for place in transforming.IN_GRAPHS),
    Hook(
        "torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", compiling.cache_key
    ),
    Hook("torch._dynamo", "allow_in_graph", compiling.calling_registered),
    Hook("torch.nested._internal.sdpa", "_autocast", jagged.casting),
)

compiling.patched_names.update(hook.name for hook in HOOKS)

_lock = lock()
_open = 0

#: The hooks whose module is imported: the module's namespace, the name, the original,
#: and the replacement.
_ready: list[Ready] = []

#: The other hooks, and the names of the modules that they wait for. "torch" comes first, so that
#: the first region looks for modules. Keras stays among the names where it computes with PyTorch,
#: so that the compiled kernels leave its patches to `_apply`.
_waiting: list[Hook] = list(HOOKS)
_awaited: list[str] = ["torch"]
_modules = sys.modules.keys()


def _missing(hook: Hook) -> FrameworkNotSupported:
    return missing("torch", torch.__version__, f"{hook.module}.{hook.name}")


def acquire() -> None:
    """Count a region that opens in some thread; with the first, apply the patches."""
    global _open
    with _lock:
        if _open == 0:
            _apply()
        _open += 1


def release() -> None:
    """Count a region that closes; with the last, undo the patches."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            _undo()


def _apply() -> None:
    if _awaited:
        if not _modules.isdisjoint(_awaited):
            _look_for_modules()
        sys.meta_path.insert(0, _imports)
    try:
        for place, (namespace, name, original, replacement) in enumerate(_ready):
            if namespace.get(name) is original:
                namespace[name] = replacement
            elif namespace.get(name) is not replacement:
                _replace_anew(place)
        if keras.in_use():
            LASTING.add(keras, keras.all_patches)
    except BaseException:
        _undo()
        raise


def _undo() -> None:
    if LASTING.applied:
        LASTING.undo()
    for namespace, name, original, replacement in _ready:
        # Somebody who patched on top of ours keeps their patch: ours, below it, does nothing
        # outside regions.
        if namespace.get(name) is replacement:
            namespace[name] = original
    if _imports in sys.meta_path:
        sys.meta_path.remove(_imports)


def _look_for_modules() -> None:
    """Make the waiting hooks ready whose modules are imported by now."""
    for hook in [hook for hook in _waiting if hook.awaited() is None]:
        module = sys.modules[hook.module]
        namespace = module.__dict__
        if hook.name not in namespace:
            if getattr(module.__spec__, "_initializing", False):
                # still being imported, and has imported the module of another hook
                continue
            raise _missing(hook)
        original = namespace[hook.name]
        for _, _, hooked, replacement in _ready:
            if original is replacement:
                # imported inside a region, this module took another one's replacement
                original = hooked
        _ready.append((namespace, hook.name, original, hook.replacement(original)))
        _waiting.remove(hook)
    _awaited[:] = dict.fromkeys(hook.awaited() or hook.module for hook in _waiting)
    if keras.in_use() is not False:
        _awaited.append("keras")


def _replace_anew(place: int) -> None:
    """Patch on top of an object that somebody else has put in a hook's place meanwhile."""
    namespace, name, *_ = _ready[place]
    hook = next(
        hook
        for hook in HOOKS
        if hook.name == name and sys.modules[hook.module].__dict__ is namespace
    )
    if name not in namespace:
        raise _missing(hook)
    original = namespace[name]
    _ready[place] = namespace, name, original, hook.replacement(original)
    namespace[name] = _ready[place][3]


def _forget_other_threads() -> None:
    """Undo the patches in a forked process.

    No other thread exists there, and this one has closed its own regions.
    """
    global _open
    if library is not None:
        library.forget_other_threads()
    native_cache.forget_other_threads()
    if _open:
        _open = 1
        release()


at_fork(after_in_child=_forget_other_threads)


# --- Keras in compiled programs -------------------------------------------------------------------


class _AsInARegion:
    """The patches of an open region, as one patch."""

    _applied = False

    def apply(self) -> None:
        acquire()
        self._applied = True

    def undo(self) -> None:
        if self._applied:
            self._applied = False
            release()

    def forget(self) -> None:
        """Forget the patch in a forked process, where all of them have been undone."""
        self._applied = False


def kept_for_keras() -> Patches:
    """Return the patches of an open region, for graphs of Keras layers that run with none open.

    Dynamo guards such a graph on the patched functions.
    """
    patch = _AsInARegion()
    return Patches(lambda: (patch,), patch.forget)


_in_graphs = kept_for_keras()


def make_capturable(region: AbstractContextManager[object, bool | None]) -> int:
    """Return a number under which a graph can open a region; see `unamp_torch.compiling`.

    Once a region has opened in a graph of Keras layers, the patches stay for good: the graph is
    guarded on them also where no region is open. Dynamo traces again what it traced without them.
    """
    if keras.in_use() and not _in_graphs.open:
        _in_graphs.acquire()
        compiling.trace_again()
    return compiling.make_capturable(region)


# --- modules that come later ----------------------------------------------------------------------


class _Imports(importlib.abc.MetaPathFinder):
    """Patches a hook's module as soon as it is imported inside a region."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _awaited:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, _patch_imported)  # type: ignore[assignment]
        return spec


def _patch_imported() -> None:
    with _lock:
        if _imports in sys.meta_path:
            known = len(_ready)
            _look_for_modules()
            for namespace, name, _, replacement in _ready[known:]:
                namespace[name] = replacement
            if keras.in_use():
                LASTING.add(keras, keras.all_patches)


_imports = _Imports()


def _exporting_flag() -> tuple[dict[str, object] | None, str]:
    """Return the namespace and the name of the flag that `torch.compiler.is_exporting` reads.

    The namespace is None where this version does more than read a flag.
    """
    asked = torch.compiler.is_exporting
    names, space = asked.__code__.co_names, asked.__globals__
    looks = len(names) == 1 and isinstance(space.get(names[0]), bool)
    return (space if looks else None), "".join(names[:1])


if library is not None:
    # The same, compiled; unusual cases are left to the functions above.
    library.configure(
        tuple(each.name for each in KERNEL_KEYS),
        thread,
        torch.compiler.is_exporting,
        *_exporting_flag(),
        BannedOperation,
        NO_KERNEL,
        refuse_on_meta,
        META_IN_PYTHON,
        _ready,
        _awaited,
        LASTING.applied,
        _imports,
        vars(sys),
        _apply,
        _undo,
    )
    acquire, release = library.acquire, library.release
