"""The kernels that carry out the rules of operators which PyTorch does not follow by itself.

One call, from top to bottom: the dispatcher calls a kernel (`kernel_of`), which looks up the action
of the plan in force for the operator (`_run`). The action (`low`, `in_float32`, ...) casts the
inputs and calls the operator; where there is none, the call passes on unchanged (`_pass_on`). The
same in C++ is `compiled/kernels.h`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch

from unamp._function_types import Function, Keywords
from unamp.adapter.performing import differing
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Rule
from unamp_torch import observing
from unamp_torch.casting import ELIGIBLE, cast_floats
from unamp_torch.compiling import run_uncompiled
from unamp_torch.facts import follows_parts
from unamp_torch.listing import Action, Operator
from unamp_torch.state import (
    CPU,
    CUDA,
    FEW,
    KERNEL_KEYS,
    META,
    NATIVE_KEYS,
    TRACED,
    Plan,
    autocast_key,
    dispatch_key,
    excluded,
    set_excluded,
    thread,
)

_CPU_KEY, _CUDA_KEY = NATIVE_KEYS[CPU], NATIVE_KEYS[CUDA]
_ALL_KEYS = (*(each.key for each in KERNEL_KEYS), _CPU_KEY, _CUDA_KEY)
_backward_in_progress = torch._C._current_graph_task_id  # -1 where there is none in this thread

#: Phrases of PyTorch's errors about a dtype for which an operator has no kernel.
NO_KERNEL = (
    "Half",
    "BFloat16",
    "ow precision",
    "float or double",
    "float and double",
    "nsupported dtype",
    "could not create a primitive",
)


def says_no_kernel(error: RuntimeError) -> bool:
    """Return whether an error of PyTorch's is about a dtype that an operator has no kernel for."""
    return any(phrase in str(error) for phrase in NO_KERNEL)


# --- actions --------------------------------------------------------------------------------------
# They run with our keys and those of native autocast excluded: no rule reaches into the operator.


def low(operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype) -> object:
    """Apply LOW. Where the device turns out to have no kernel for the dtype, emulate.

    That is not remembered: a kernel may take some calls of its operator alone (dense tensors, and
    no sparse ones), and the result of a call must not depend on the calls before it.
    """
    if operator.keeps_explicit_dtype(args, kwargs):
        return operator.call(*args, **kwargs)
    if operator.has_sparse_gradient(args, kwargs):
        return _as_its_weight(operator, args, kwargs)
    if operator.no_kernel and (operator.eligible.device(args, kwargs), dtype) in operator.no_kernel:
        return emulated(operator, args, kwargs, dtype)
    converted, keywords = operator.eligible.convert(dtype, args, kwargs, keep=True)
    try:
        return operator.call(*converted, **keywords)
    except RuntimeError as error:
        if not says_no_kernel(error):
            raise
    return emulated(operator, args, kwargs, dtype)


def low_alone(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply LOW, whatever policy is in force, with no rule reaching into the operator."""
    keys = (*_ALL_KEYS, autocast_key(operator.eligible.device(args, kwargs)))
    return _call_below(keys, low, (operator, args, kwargs, dtype), {})


def low_widened(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply LOW, and cast the result back to float32 at once."""
    return cast_floats(low(operator, args, kwargs, dtype), torch.float32)


def emulated(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply LOW without a low kernel: round inputs to low, compute in float32, round the result."""
    thread.emulated = True
    args, kwargs = operator.eligible.convert(dtype, args, kwargs, keep=True)
    return cast_floats(_call_widened(operator, args, kwargs), dtype)


def _call_widened(operator: Operator, args: Sequence[object], kwargs: Keywords) -> object:
    converted, keywords = operator.eligible.convert(torch.float32, args, kwargs)
    result = operator.call(*converted, **keywords)
    operator.eligible.write_back(args, converted)
    return result


def _as_its_weight(operator: Operator, args: Sequence[Any], kwargs: Keywords) -> object:
    # PyTorch casts no sparse gradient, so the weight, the first argument, keeps its own dtype.
    args, kwargs = operator.eligible.convert(args[0].dtype, args, kwargs)
    return operator.call(*args, **kwargs)


def in_float32(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply FP32."""
    if operator.has_sparse_gradient(args, kwargs):
        return _as_its_weight(operator, args, kwargs)
    if operator.keeps_explicit_dtype(args, kwargs):
        return operator.call(*args, **kwargs)
    return _call_widened(operator, args, kwargs)


def in_widest(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply WIDEST, for operators that do not promote, or have no kernel for the common dtype."""
    dtypes = {t.dtype for t in operator.eligible.tensors(args, kwargs) if t.dtype in ELIGIBLE}
    if len(dtypes) > 1 or (operator.eligible.parameters and torch.float32 in dtypes):
        # The latter is a norm of a float32 tensor, which takes no low parameters.
        return _call_widened(operator, args, kwargs)
    if (
        operator.no_kernel
        and dtypes
        and (operator.eligible.device(args, kwargs), *dtypes) in operator.no_kernel
    ):
        return emulated(operator, args, kwargs, *dtypes)
    return operator.call(*args, **kwargs)


def in_narrowest(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply NARROWEST: where inputs differ, as LOW in the low ones' dtype; else as WIDEST."""
    dtypes = [t.dtype for t in operator.eligible.tensors(args, kwargs) if t.dtype in ELIGIBLE]
    if (
        len({*dtypes}) > 1
        and (found := differing(Rule.NARROWEST, torch.float32, dtypes)) is not torch.float32
    ):
        return low(operator, args, kwargs, found)
    return in_widest(operator, args, kwargs, dtype)


def untouched(
    operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
) -> object:
    """Apply UNTOUCHED, for operators that native autocast would touch, or whose parts it would."""
    return operator.call(*args, **kwargs)


@dataclass(frozen=True)
class Banned:
    """Apply BANNED: raise where an eligible tensor comes in."""

    message: str

    def __call__(
        self, operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
    ) -> object:
        if any(tensor.dtype in ELIGIBLE for tensor in operator.eligible.tensors(args, kwargs)):
            raise BannedOperation(self.message)
        return operator.call(*args, **kwargs)


@dataclass(frozen=True)
class WithoutLowKernel:
    """Carry out another action as if the device had no low kernel of the operator: emulate."""

    action: Action

    def __call__(
        self, operator: Operator, args: Sequence[object], kwargs: Keywords, dtype: torch.dtype
    ) -> object:
        device = operator.eligible.device(args, kwargs)
        return self.action(operator.without_low_kernels(device), args, kwargs, dtype)


# --- the kernel -----------------------------------------------------------------------------------


def kernel_of(operator: Operator, own_key: torch._C.DispatchKey) -> Function:
    """Return an operator's kernel for one of our keys."""

    def kernel(keyset: torch._C.DispatchKeySet | None, *args: Any, **kwargs: Any) -> object:
        if thread.sink is not None and _is_reported(operator):
            run = partial(_run, own_key=own_key, keyset=keyset, args=args, kwargs=kwargs)
            return observing.report(operator, run, args, kwargs, low_alone)
        return _run(operator, own_key, keyset, args, kwargs)

    def kernel_without_keyset(*args: Any, **kwargs: Any) -> object:
        return kernel(None, *args, **kwargs)

    def kernel_of_a_factory(*args: Any, **kwargs: Any) -> object:
        # No tensor comes in to be cast, but rules would reach the operations that compute it.
        return _call_below((own_key, _CPU_KEY, _CUDA_KEY), operator.call, args, kwargs)

    if not (operator.eligible.positions or operator.eligible.keywords):
        chosen: Function = kernel_of_a_factory
    else:
        # Only what is made of other operators needs the keyset (`_pass_on`), and
        # to receive it takes time.
        chosen = kernel if operator.composite else kernel_without_keyset
    run_uncompiled(chosen)
    return chosen


def _is_reported(operator: Operator) -> bool:
    """Return whether `unamp.trace` reports an operator: one that computes or has a rule in force.

    A backward pass is not reported: it follows no rule, and inside a region no kernel of ours is
    called in it.
    """
    plan = thread.plan
    if _backward_in_progress() != -1:
        return False
    if plan is not None and not plan.delegated and follows_parts(plan.policy, operator.op):
        return False
    return operator.computes or (plan is not None and plan.rule(operator.op) is not Rule.UNTOUCHED)


def _run(
    operator: Operator,
    own_key: torch._C.DispatchKey,
    keyset: torch._C.DispatchKeySet | None,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    """Carry out the action of the plan in force for a call, or pass the call on."""
    plan = thread.plan
    lead = None if plan is None else _lead(operator, args, kwargs)
    device = CPU if lead is None else lead.device.type
    if plan is None or lead is None or (action := _action_on(device, plan, operator)) is None:
        return _pass_on(operator, own_key, keyset, args, kwargs)
    if (
        device == META
        and plan.key is not TRACED
        and thread.sink is None
        and torch.is_inference_mode_enabled()
    ):
        refuse_on_meta()
    keys = (own_key, _CPU_KEY, _CUDA_KEY, autocast_key(device))
    return _call_below(keys, action, (operator, args, kwargs, plan.low_on(device)), {})


def refuse_on_meta() -> NoReturn:
    """Raise an error for a meta tensor in inference mode, where a region reaches few operators.

    There meta tensors have no dispatch key that a region could use for them alone.

    Raises:
        NotExpressible: always.
    """
    raise NotExpressible(
        "under torch.inference_mode a region that names no device does not reach meta tensors: "
        'open it with unamp.autocast("meta"), or use torch.no_grad'
    )


def _lead(operator: Operator, args: Sequence[object], kwargs: Keywords) -> torch.Tensor | None:
    """Return a call's first eligible tensor, whose device is the call's; None without any."""
    # Most often it is the first argument, which is found without a generator.
    for position in operator.eligible.positions:
        if position < len(args) and isinstance(first := args[position], torch.Tensor):
            return first
        break
    return next(operator.eligible.tensors(args, kwargs), None)


def _action_on(device: str, plan: Plan, operator: Operator) -> Action | None:
    """Return the action for a call on a device; None where the call passes on.

    Where native autocast is off for the device inside a region, somebody has switched mixed
    precision off by PyTorch's own means, or a compiled graph is running, with its casts in it.
    """
    key = autocast_key(device)
    if key is not None and excluded(key):
        return None
    table = plan.actions.get(device)
    return None if table is None else table.get(operator.name)


def _call_below(
    keys: Iterable[torch._C.DispatchKey | None],
    call: Function,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    """Call a function with dispatch keys excluded, so that no rule reaches into it."""
    ours = [key for key in keys if key is not None and not excluded(key)]
    for key in ours:
        set_excluded(key, True)
    try:
        return call(*args, **kwargs)
    finally:
        for key in ours:
            set_excluded(key, False)


def below_rules(call: Function, args: Sequence[object], kwargs: Keywords) -> object:
    """Call a function so that no rule reaches into it."""
    return _call_below(_ALL_KEYS, call, args, kwargs)


def _pass_on(
    operator: Operator,
    own_key: torch._C.DispatchKey,
    keyset: Any,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    """Call an operator for which the plan in force has no action."""
    if operator.composite and not _has_numbers(operator, args):
        # With our key excluded, its parts would not meet their own rules.
        return operator.overload._handle.redispatch_boxed(keyset & _BELOW, *args, **kwargs)
    set_excluded(own_key, True)
    try:
        return operator.call(*args, **kwargs)
    finally:
        set_excluded(own_key, False)


#: The dispatch keys below all of ours.
_BELOW = torch._C._dispatch_keyset_full_after(FEW.key) & torch._C._dispatch_keyset_full_after(
    TRACED.key
)

#: Python's numbers arrive as they are where a tensor is expected; PyTorch's redispatch refuses
#: them.
_NUMBERS = frozenset({int, float, bool, complex})


def _has_numbers(operator: Operator, args: Sequence[object]) -> bool:
    """Return whether Python's numbers are among a call's eligible arguments."""
    return any(type(args[i]) in _NUMBERS for i in operator.eligible.positions if i < len(args))


# --- meta tensors ---------------------------------------------------------------------------------
#
# Meta tensors have no key of native autocast's, and no other that a region could include for them
# alone. Kernels of ours replace autograd's for them, and hand calls on to the same kernels of
# autograd by AutogradOther, the key of backends that have none of their own.

_AUTOGRAD_AND_META = torch._C.DispatchKeySet(
    dispatch_key("AutogradOther")
) | torch._C.DispatchKeySet(dispatch_key("Meta"))


def kernel_on_meta(operator: Operator) -> Function:
    """Return an operator's kernel for meta tensors."""

    def kernel(*args: Any, **kwargs: Any) -> object:
        plan = thread.plan
        if plan is None or (excluded(_CPU_KEY) and excluded(_CUDA_KEY)):
            # in an action, or switched off by PyTorch's own means
            return _past_autograd(operator, args, kwargs)
        lead = _lead(operator, args, kwargs)
        device = CPU if lead is None else lead.device.type
        action = None if device in NATIVE_KEYS else _action_on(device, plan, operator)
        if action is None:
            return _past_autograd(operator, args, kwargs)
        return below_rules(action, (operator, args, kwargs, plan.low_on(META)), {})

    run_uncompiled(kernel)
    return kernel


def _past_autograd(operator: Operator, args: Sequence[Any], kwargs: Keywords) -> object:
    """Call the kernel of autograd that a kernel of ours has replaced."""
    if operator.composite:
        return operator.overload.decompose(*args, **kwargs)
    lead = _lead(operator, args, kwargs)
    if lead is not None and _has_numbers(operator, args):
        # Redispatching takes no number where a tensor is expected. A meta tensor without a value
        # does, because only its dtype counts.
        args = [
            torch.scalar_tensor(a, dtype=torch.result_type(lead, a), device=META)
            if type(a) in _NUMBERS and i in operator.eligible.positions
            else a
            for i, a in enumerate(args)
        ]
    return operator.overload._handle.redispatch_boxed(_AUTOGRAD_AND_META, *args, **kwargs)
