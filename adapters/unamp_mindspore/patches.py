"""The patches of MindSpore's code that must know about regions.

`acquire` applies them with the first open region of the process, `release` undoes them with the
last. Each replacement asks first whether the calling thread is in a region, and calls the original
where it is not: a patch is seen by all threads.
"""

from __future__ import annotations

import functools
import sys
import types
from functools import cache
from typing import Any

import mindspore
from mindspore import amp, nn, ops
from mindspore._c_expression import TensorPy
from mindspore.experimental.optim import lr_scheduler
from mindspore.ops.composite import base as composite
from mindspore.train import Metric

from unamp._function_types import Function
from unamp.adapter.patching import Patches
from unamp.adapter.replacing import (
    AttributePatch,
    CodePatch,
    MethodsPatch,
    PatchGroup,
    as_replacement,
)
from unamp.adapter.state import in_force, in_regions, runs_without_policy, suspended
from unamp.regions import Region, innermost_region
from unamp_mindspore import compiling
from unamp_mindspore.binding import WITHOUT_POLICY
from unamp_mindspore.calls import entry
from unamp_mindspore.casting import cast, convert, map_floats, recording
from unamp_mindspore.decorators import cast_inputs_of
from unamp_mindspore.drawing import METHODS, draws_in_float32
from unamp_mindspore.listing import codes, methods, primitive_call
from unamp_mindspore.moved import api
from unamp_mindspore.own_amp import OWN_HOOKS
from unamp_mindspore.plans import Plan
from unamp_mindspore.state import DTYPES, FLOAT32, LOW, NAMES, Tensor, on_cpu, thread

BFLOAT16 = DTYPES["bfloat16"]

#: The module, by its path: in `mindspore.common` a function of the same name hides it.
recompute: types.ModuleType = sys.modules["mindspore.common.recompute"]


# --- functions of MindSpore that must know about regions ------------------------------------------


@as_replacement
def _backward(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    # A backward pass runs in the dtypes of its forward, so a user's hooks and functions in it get
    # low gradients: emulated without a policy, maybe after the region has closed (`recorded`).
    if thread.plan is None and not thread.recorded:
        return original(*args, **kwargs)
    try:
        with installed.patched(), in_force(thread, Plan.without_policy()):
            return original(*args, **kwargs)
    finally:
        # This pass may be recorded itself, for a gradient of a higher order.
        thread.recorded = recording()


@as_replacement
def _with_vector(
    original: Function, /, fn: Function, sens_param: bool, *args: Any, **kwargs: Any
) -> Any:
    # MindSpore wants vectors in the dtypes of the results; a program gives float32 ones.
    given, results = original(fn, sens_param, *args, **kwargs)
    if sens_param and given and (thread.plan is not None or thread.recorded):
        given = (*given[:-1], _in_dtypes_of(results, given[-1]))
    return given, results


@as_replacement
def _vjp(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    if thread.plan is None and not thread.recorded:
        return found
    result, product, *others = found
    results = result if isinstance(result, tuple) else (result,)

    @functools.wraps(product)
    def with_vectors(*vectors: Any) -> Any:
        return product(*_in_dtypes_of(results, vectors))

    return result, with_vectors, *others


def _in_dtypes_of(results: Any, vectors: Any) -> Any:
    if isinstance(results, Tensor) and isinstance(vectors, Tensor):
        return cast(vectors, results.dtype) if results.dtype in NAMES else vectors
    both = isinstance(results, (tuple, list)) and isinstance(vectors, (tuple, list))
    if both and len(results) == len(vectors):
        return tuple(map(_in_dtypes_of, results, vectors))
    return vectors


@as_replacement
def _recompute(original: Function, /, block: Function, *args: Any, **kwargs: Any) -> Any:
    # For the second forward, MindSpore restores its own strategy alone: open the region again.
    region = innermost_region()
    if thread.plan is None or region is None or getattr(block, "_region", None) is region:
        return original(block, *args, **kwargs)
    return original(_in_region(block, region), *args, **kwargs)


@as_replacement
def _recomputed_cell(original: Function, /, self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    # MindSpore makes one recomputing cell for all calls of a cell, whatever the policy of a call.
    again, region = self._recompute_cell, innermost_region()
    if thread.plan is None or region is None or not isinstance(again, recompute._RecomputeCell):
        return original(self, *args, **kwargs)
    return recompute._RecomputeCell(_in_region(again.wrap_cell.function, region))(*args, **kwargs)


@as_replacement
def _custom_bprop(original: Function, /, self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    # A cell's bprop gets the arguments of the call; its forward got them cast by `custom_fwd`.
    plan = thread.plan
    target = None if plan is None or not plan.policy.active else cast_inputs_of(self.construct)
    if target is None:
        return original(self, *args, **kwargs)
    return original(
        self, *convert(cast, DTYPES[target], args), **convert(cast, DTYPES[target], kwargs)
    )


def _in_region(block: Function, region: Region) -> Function:
    if isinstance(block, nn.Cell):
        return _Again(block, region)
    if isinstance(block, types.MethodType):
        return types.MethodType(_in_region(block.__func__, region), block.__self__)

    @functools.wraps(block)
    def run(*args: Any, **kwargs: Any) -> Any:
        with region:
            return block(*args, **kwargs)

    run._region = region  # type: ignore[attr-defined]
    return run


class _Again(nn.Cell):  # type: ignore[misc]
    """A cell that opens a region at each call, and calls another cell in it."""

    def __init__(self, block: nn.Cell, region: Region) -> None:
        super().__init__(auto_prefix=False)
        self.block = block
        self._region = region

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        with self._region:
            return self.block(*args, **kwargs)


def _set_item(original: Function) -> Function:
    # In place, so no rule applies, nor to the operations inside. The CPU has no bfloat16 kernel for
    # some indices.
    def set_item(self: Tensor, index: object, value: object) -> object:
        if thread.plan is None:
            return original(self, index, value)
        with suspended(thread):
            return changed(self, index, value)

    def changed(self: Tensor, index: object, value: object) -> object:
        if self.dtype is not BFLOAT16 or not on_cpu():
            return original(self, index, value)
        wide = cast(self, FLOAT32)
        original(wide, index, convert(cast, FLOAT32, value))
        self.copy_(cast(wide, BFLOAT16))
        # An item of an item: `x[0][1] = y` must reach x.
        if self.parent_tensor_ is not None and self.index_of_parent_ is not None:
            changed(self.parent_tensor_, self.index_of_parent_, self)
        return self

    return set_item


@in_regions(thread)
def _assign_value(original: Function, self: Tensor, value: object) -> object:
    # A tensor keeps its dtype, as in every other way to change it: it would take over the value's.
    if self.dtype is FLOAT32 and isinstance(value, Tensor) and value.dtype in LOW:
        value = cast(value, FLOAT32)
    return original(self, value)


@in_regions(thread)
def _clip(original: Function, *args: Any, **kwargs: Any) -> Any:
    # As in a step, gradients follow no rule. (In a graph: see `unamp_mindspore.binding`.)
    with in_force(thread, Plan.without_policy()):
        return original(*args, **kwargs)


@in_regions(thread)
def _drawing(original: Function, self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    # Low arguments become float32 first. (In a graph: see `unamp_mindspore.binding`.)
    if thread.plan is None or not draws_in_float32(self, thread.plan.policy):
        return original(self, *args, **kwargs)
    with in_force(thread, Plan.without_policy()):
        given: Any = map_floats((args, kwargs), FLOAT32)
        return original(self, *given[0], **given[1])


@in_regions(thread)
def _metric_data(original: Function, self: Metric, data: object) -> object:
    # Metrics compute in NumPy, in the dtype of their data, which cannot be bfloat16.
    return original(self, map_floats(data, FLOAT32))


_without_policy = runs_without_policy(thread)

#: Functions of Python code: where each is, and the function that returns its replacement.
_HOOKS = (
    (Tensor, "_setitem", _set_item),
    (Tensor, "_setitem_origin", _set_item),
    (Tensor, "assign_value", _assign_value),
    (Tensor, "copy", _without_policy),  # MindSpore copies by dividing by 1
    (recompute, "recompute", _recompute),
    (recompute, "recompute_without_reentrant", _recompute),
    (ops, "clip_by_global_norm", _clip),
    # Learning rates stay float32. (In a graph: see `unamp_mindspore.binding`.)
    (lr_scheduler.LRScheduler, "step", _without_policy),
    (lr_scheduler.CosineAnnealingWarmRestarts, "step", _without_policy),
    (lr_scheduler.ReduceLROnPlateau, "step", _without_policy),
    (lr_scheduler.SequentialLR, "step", _without_policy),
    # So do loss scales. (In a graph: see `unamp_mindspore.binding`.)
    *((amp.DynamicLossScaler, name, _without_policy) for name in ("scale", "unscale", "adjust")),
    *((amp.StaticLossScaler, name, _without_policy) for name in ("scale", "unscale")),
    (Metric, "_convert_data", _metric_data),
    *((kind, name, _drawing) for kind, names in METHODS.items() for name in names),
    (nn.Cell, "_run_grad_construct", _recomputed_cell),
    (nn.Cell, "_call_custom_bprop", _custom_bprop),
)


@cache
def _hooks() -> tuple[CodePatch, ...]:
    return tuple(CodePatch(getattr(home, name), replacement) for home, name, replacement in _HOOKS)


# --- putting in and taking out --------------------------------------------------------------------


@cache
def _everything() -> tuple[PatchGroup]:
    # Patched in the class that has them, not in `Tensor`: names that are added to a dictionary and
    # removed again make it grow with each region.
    inherited = MethodsPatch(
        TensorPy, {name: entry(operator) for name, operator in methods().items()}
    )
    functions = (primitive_call, *_hooks(), *OWN_HOOKS, compiling.TRACE_HOOK, *codes().values())
    # For all classes derived from these: a call of an optimizer is its step.
    steps = (AttributePatch(kind, "__call__", _without_policy) for kind in WITHOUT_POLICY)
    return (PatchGroup((inherited, *functions, *steps)),)


def _forget() -> None:
    thread.plan, thread.sink, thread.recorded = None, None, False


@cache
def install() -> None:
    """Apply the patches that stay: of compilers, and of backward passes that follow a region."""
    compiling.install()
    CodePatch(api._PyNativeExecutor.grad, _backward).apply()
    CodePatch(mindspore.vjp, _vjp).apply()
    if (run := getattr(composite, "_pynative_forward_run", None)) is not None:  # since 2.9
        CodePatch(run, _with_vector).apply()


installed = Patches(_everything, _forget)
acquire, release = installed.acquire, installed.release
