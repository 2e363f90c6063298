"""The kernels on the slot: what stands between a caller and an operator whose rule PyTorch does not follow by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from unamp.adapter.observing import traced
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_torch import observing
from unamp_torch.casting import ELIGIBLE, Eligible, cast_floats
from unamp_torch.compiled import library
from unamp_torch.compiling import runs_as_it_is
from unamp_torch.facts import facts
from unamp_torch.state import CPU, CUDA, DTYPES, FEW, NATIVE_KEYS, SLOTS, TRACED, Slot, excluded, lock, set_excluded, thread

__all__ = [
    "Action",
    "Banned",
    "Emulating",
    "Operator",
    "compiled_plan",
    "emulated",
    "in_float32",
    "in_widest",
    "install",
    "low",
    "low_widened",
    "operators",
    "untouched",
]

_CPU_KEY, _CUDA_KEY = NATIVE_KEYS[CPU], NATIVE_KEYS[CUDA]
_backward_in_progress = torch._C._current_graph_task_id  # -1 where there is none in this thread

#: What PyTorch says, among other things, of a dtype that an operator has no kernel for.
NO_KERNEL = (
    *("Half", "BFloat16", "ow precision", "float or double", "float and double", "nsupported dtype"),
    "could not create a primitive",
)

Action = Callable[["Operator", Any, dict[str, Any], torch.dtype], Any]


class Operator:
    """One overload of an ATen operator, and what a rule needs to know about it.

    Attributes:
        op: the vocabulary's name.
        name: the overload's own name, e.g. ``"aten::add.Tensor"``.
        call: the operator itself, with its arguments as the dispatcher hands them over.
        composite: whether it is made of other operators.
        eligible: the arguments that a rule casts.
        computes: whether it does more than move data or make it, in whatever dtype it is told.
        no_kernel: the device types and low dtypes that it has no kernel for: those known, and those found out.
        dtype_position: where an explicit result dtype may stand, or None; a call that gives one keeps its meaning.
    """

    __slots__ = ("call", "composite", "computes", "dtype_position", "eligible", "name", "no_kernel", "op", "overload")

    def __init__(self, op: str, overload: Any, activation_only: bool) -> None:
        schema = overload._schema
        self.op = op
        self.name = overload.name()
        self.overload = overload
        self.computes = traced(op)
        self.call = _binding(overload)
        self.composite = torch._C._dispatch_has_kernel_for_dispatch_key(self.name, "CompositeImplicitAutograd")
        self.eligible = Eligible(schema, activation_only)
        self.no_kernel = {(device, DTYPES[dtype]) for (device, dtype), ops in facts().lacking.items() if op in ops}
        self.dtype_position = next((i for i, a in enumerate(schema.arguments) if a.name == "dtype"), None)

    def calling(self, call: Callable[..., Any]) -> Operator:
        """The same operator, called in another way."""
        other = copy.copy(self)
        other.call, other.composite = call, False
        return other

    def keeps_explicit_dtype(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the caller named the result's dtype: an explicit cast, which no rule changes."""
        if self.dtype_position is None:
            return False
        return kwargs.get("dtype") is not None or (self.dtype_position < len(args) and args[self.dtype_position] is not None)


def _binding(overload: Any) -> Callable[..., Any]:
    # Python's own binding of a function is twice as fast to call as the overload object, and takes the same arguments in the
    # same order; an overload is the only way to functions without one.
    name = overload._schema.name.removeprefix("aten::")
    # The dispatcher leaves out arguments that have the schema's default; the binding's default for a reduction is "none".
    if any(argument.name == "reduction" for argument in overload._schema.arguments):
        return overload._op  # type: ignore[no-any-return]
    for namespace in (torch._C._VariableFunctions, torch._C._nn):
        found = getattr(namespace, name, None)
        if found is not None and name not in _BINDING_DIFFERS:
            return found  # type: ignore[no-any-return]
    return overload._op  # type: ignore[no-any-return]


#: Functions whose Python binding does not take the operator's arguments as they are.
_BINDING_DIFFERS = frozenset({"einsum", "gradient", "nonzero", "split"})


# --- actions: what a rule does to one call. They run with the slot and native autocast excluded. ---------------------------


def low(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule LOW. A low dtype that the device turns out to have no kernel for is emulated, from then on without trying."""
    if operator.keeps_explicit_dtype(args, kwargs):
        return operator.call(*args, **kwargs)
    if operator.no_kernel and (operator.eligible.device(args, kwargs), dtype) in operator.no_kernel:
        return emulated(operator, args, kwargs, dtype)
    converted, keywords = operator.eligible.convert(dtype, args, kwargs, keep=True)
    try:
        return operator.call(*converted, **keywords)
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in NO_KERNEL):
            raise
    result = emulated(operator, args, kwargs, dtype)
    operator.no_kernel.add((operator.eligible.device(args, kwargs), dtype))
    return result


def low_widened(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule LOW with the result back in float32 at once."""
    return cast_floats(low(operator, args, kwargs, dtype), torch.float32)


def emulated(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule LOW where there is no kernel: inputs rounded to low, computed in float32, the result rounded to low."""
    thread.emulated = True
    args, kwargs = operator.eligible.convert(dtype, args, kwargs, keep=True)
    args, kwargs = operator.eligible.convert(torch.float32, args, kwargs)
    return cast_floats(operator.call(*args, **kwargs), dtype)


def in_float32(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule FP32."""
    if not operator.keeps_explicit_dtype(args, kwargs):
        args, kwargs = operator.eligible.convert(torch.float32, args, kwargs)
    return operator.call(*args, **kwargs)


def in_widest(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule WIDEST, for operators that do not promote by themselves, or have no kernel for the dtype they agree in."""
    dtypes = {t.dtype for t in operator.eligible.tensors(args, kwargs) if t.dtype in ELIGIBLE}
    if len(dtypes) > 1:
        args, kwargs = operator.eligible.convert(torch.float32, args, kwargs)
    elif operator.no_kernel and dtypes and (operator.eligible.device(args, kwargs), *dtypes) in operator.no_kernel:
        return emulated(operator, args, kwargs, *dtypes)
    return operator.call(*args, **kwargs)


def untouched(operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Rule UNTOUCHED, for operators that native autocast would touch, or whose parts it would."""
    return operator.call(*args, **kwargs)


@dataclass(frozen=True)
class Banned:
    """Rule BANNED.

    Attributes:
        message: what is said instead of computing.
    """

    message: str

    def __call__(self, operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
        if any(tensor.dtype in ELIGIBLE for tensor in operator.eligible.tensors(args, kwargs)):
            raise BannedOperation(self.message)
        return operator.call(*args, **kwargs)


@dataclass(frozen=True)
class Emulating:
    """Another action, as if there were no low kernel."""

    action: Action

    def __call__(self, operator: Operator, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
        without = copy.copy(operator)
        without.no_kernel = {(device, low) for device in NATIVE_KEYS for low in ELIGIBLE if low is not torch.float32}
        return self.action(without, args, kwargs, dtype)


# --- the kernel, and its registration ---------------------------------------------------------------------------------------


_BELOW = torch._C._dispatch_keyset_full_after(FEW.key) & torch._C._dispatch_keyset_full_after(TRACED.key)


def _kernel(operator: Operator, slot: Any) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.sink is not None and _reported(operator):
            return observing.report(operator, lambda observed: _run(observed, slot, keyset, args, kwargs), args, kwargs)
        return _run(operator, slot, keyset, args, kwargs)

    def kernel_of_its_own(*args: Any, **kwargs: Any) -> Any:
        return kernel(None, *args, **kwargs) if thread.sink is not None else _run(operator, slot, None, args, kwargs)

    def kernel_of_a_factory(*args: Any, **kwargs: Any) -> Any:
        return _whole(operator, (slot, _CPU_KEY, _CUDA_KEY), args, kwargs)

    if not (operator.eligible.positions or operator.eligible.keywords):
        runs_as_it_is(kernel_of_a_factory)
        return kernel_of_a_factory
    # Only what is made of other operators needs the keyset (`_pass_on`), and to receive it takes time.
    chosen = kernel if operator.composite else kernel_of_its_own
    runs_as_it_is(chosen)
    return chosen


def _reported(operator: Operator) -> bool:
    """Whether `unamp.trace` reports an operator here: one that computes, or that the policy in force has a rule for.

    A backward pass is not reported: it follows no rule, and inside a region nothing of ours is called in it.
    """
    if _backward_in_progress() != -1 or (thread.plan is not None and thread.plan.leaves(operator.op)):
        return False
    return operator.computes or (thread.plan is not None and thread.plan.rule(operator.op) is not Rule.UNTOUCHED)


def _run(operator: Operator, slot: Any, keyset: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    plan = thread.plan
    lead = None if plan is None else _lead(operator, args, kwargs)
    # Native autocast being off for the tensor's device means that somebody inside the region switched mixed precision off by
    # PyTorch's own means, or that a compiled graph, with its casts in it, is running.
    action = None
    if lead is None:
        pass
    elif lead.is_cpu:
        key, other = _CPU_KEY, _CUDA_KEY
        if not excluded(key):
            action, device = plan.on_cpu.get(operator.name), CPU  # type: ignore[union-attr]
    elif lead.is_cuda:
        key, other = _CUDA_KEY, _CPU_KEY
        if not excluded(key):
            action, device = plan.on_cuda.get(operator.name), CUDA  # type: ignore[union-attr]
    if action is None:
        return _pass_on(operator, slot, keyset, args, kwargs)
    dtype = plan.low if plan.beside is None else plan.low_on(device)  # type: ignore[union-attr]
    other_off = excluded(other)
    set_excluded(slot, True)
    set_excluded(key, True)
    if not other_off:
        set_excluded(other, True)
    try:
        return action(operator, args, kwargs, dtype)
    finally:
        if not other_off:
            set_excluded(other, False)
        set_excluded(key, False)
        set_excluded(slot, False)


def _whole(operator: Operator, keys: Iterable[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call what takes no tensor that a rule could cast: no rule reaches into it."""
    ours = [key for key in keys if not excluded(key)]
    for key in ours:
        set_excluded(key, True)
    try:
        return operator.call(*args, **kwargs)
    finally:
        for key in ours:
            set_excluded(key, False)


def _lead(operator: Operator, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The tensor that says on which device the call is: the first one."""
    for position in operator.eligible.positions:
        if position < len(args) and isinstance(args[position], torch.Tensor):
            return args[position]  # type: ignore[no-any-return]
        break
    return next(iter(operator.eligible.tensors(args, kwargs)), None)


def _pass_on(operator: Operator, slot: Any, keyset: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operator that nothing is done about."""
    if operator.composite and not any(type(args[i]) in _NUMBERS for i in operator.eligible.positions if i < len(args)):
        # What it is made of still meets its own rules.
        return operator.overload._handle.redispatch_boxed(keyset & _BELOW, *args, **kwargs)
    set_excluded(slot, True)
    try:
        return operator.call(*args, **kwargs)
    finally:
        set_excluded(slot, False)


#: Python's numbers arrive as they are where a tensor is expected; PyTorch's redispatch does not take them.
_NUMBERS = frozenset({int, float, bool, complex})

_lock = lock()
_fallthrough: list[torch.library.Library] = []
_libraries: dict[Slot, torch.library.Library] = {}
_installed: set[tuple[Slot, str]] = set()
_compiled: dict[str, int] = {}  # the operators with compiled kernels, and their numbers


#: Groups whose other tensors are parameters and statistics, which stay as they are.
_ACTIVATION_ONLY = frozenset({"norm", "quantize"})


@cache
def operators(op: str, *, inner: bool = False) -> tuple[Operator, ...]:
    """The overloads through which an operation of the vocabulary is reached; none where torch does not have it.

    In-place variants and those with an explicit output are left out: no rule touches them. So are overloads that exist for
    TorchScript alone, and, unless asked for, operators that are no entry points.
    """
    return tuple(_overloads(op, inner))


def _overloads(op: str, inner: bool) -> Iterable[Operator]:
    entry = vocabulary()[op]
    if entry.group == "cast":
        return  # an explicit cast keeps its meaning, and `detach` from Python would break the making of parameters
    for name in entry.spellings.get("torch", ()):
        packet = None if "." in name else getattr(torch.ops.aten, name, None)
        if packet is None or (name in facts().inner and not inner):
            continue
        for overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            schema = overload._schema
            if schema.is_mutable or any(a.is_out for a in schema.arguments):
                continue
            if any(a.name in ("dtype", "out_dtype") and not a.has_default_value() for a in schema.arguments):
                continue  # the result's dtype is named in every call
            if not torch._C._dispatch_has_kernel(overload.name()):
                continue  # TorchScript's alone
            operator = Operator(op, overload, activation_only=entry.group in _ACTIVATION_ONLY)
            # What makes a tensor of none is ours where it is computed with operations that rules would reach.
            made_of_others = entry.group == "creation" and op in facts().made_of
            if operator.eligible.positions or operator.eligible.keywords or made_of_others:
                yield operator


def install(wanted: Iterable[Operator], slot: Slot) -> None:
    """Register kernels for operators, once and for good: taking a kernel away under running threads crashes PyTorch."""
    missing = [operator for operator in wanted if (slot, operator.name) not in _installed]
    if not missing:
        return
    with _lock:
        if slot not in _libraries:
            _fallthrough.append(torch.library.Library("_", "IMPL"))
            _fallthrough[-1].fallback(torch.library.fallthrough_kernel, slot.name)
            _libraries[slot] = torch.library.Library("aten", "IMPL", slot.name)
        for operator in missing:
            if (slot, operator.name) not in _installed:
                if library is not None and slot is not TRACED:
                    _install_compiled(operator, slot)
                else:
                    _libraries[slot].impl(
                        operator.name.removeprefix("aten::"), _kernel(operator, slot.key), with_keyset=operator.composite
                    )
                _installed.add((slot, operator.name))


# --- the same, compiled -------------------------------------------------------------------------------------------------------

#: The numbers by which `compiled/kernels.h` knows device types and actions.
_DEVICE_NUMBERS = {CPU: 0, CUDA: 1}
_ACTION_NUMBERS: dict[Action, int] = {low: 1, low_widened: 2, in_float32: 3, in_widest: 4, untouched: 5}
_BANNED_NUMBER = 6


def _install_compiled(operator: Operator, slot: Slot) -> None:
    if operator.name not in _compiled:
        _compiled[operator.name] = _add_compiled(operator)
    name = operator.name.removeprefix("aten::")
    library.install(name, _compiled[operator.name], SLOTS.index(slot))  # type: ignore[union-attr]


def _add_compiled(operator: Operator) -> int:
    names = [argument.name for argument in operator.overload._schema.arguments]
    positions = (*operator.eligible.positions, *map(names.index, operator.eligible.keywords))
    missing = tuple((_DEVICE_NUMBERS[device], dtype) for device, dtype in operator.no_kernel)
    dtype_position = -1 if operator.dtype_position is None else operator.dtype_position
    parameters = operator.eligible.parameters
    return library.add(operator.composite, positions, parameters, dtype_position, missing)  # type: ignore[union-attr, no-any-return]


def compiled_plan(
    on_cpu: Mapping[str, Action], on_cuda: Mapping[str, Action], low_on_cpu: torch.dtype, low_on_cuda: torch.dtype
) -> Any:
    """The compiled form of what a plan does on each kind of device; its operators must be installed."""
    size = max(_compiled.values(), default=-1) + 1
    tables, advice = [bytearray(size), bytearray(size)], {}
    for table, actions in zip(tables, (on_cpu, on_cuda), strict=True):
        for name, action in actions.items():
            table[_compiled[name]] = _BANNED_NUMBER if isinstance(action, Banned) else _ACTION_NUMBERS[action]
            if isinstance(action, Banned):
                advice[_compiled[name]] = action.message
    return library.plan(bytes(tables[0]), bytes(tables[1]), low_on_cpu, low_on_cuda, advice)  # type: ignore[union-attr]
