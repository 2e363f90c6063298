"""Decorators for the forward and backward of custom autograd functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, overload

from unamp._function_types import F
from unamp.adapter import registry
from unamp.dtypes import ELIGIBLE, dtype_name
from unamp.errors import shortened
from unamp.policy import Policy
from unamp.regions import current_policy, is_autocast_enabled, policy_region
from unamp.typing import DtypeLike

_OFF = Policy(enabled=False)

#: The attribute of a forward that holds its inputs' dtype, for compilers that run no decorators.
CAST_INPUTS = "__unamp_cast_inputs__"

#: The attribute of a backward that runs under its forward's policy, for the same compilers.
AS_FORWARD = "__unamp_as_forward__"


@overload
def custom_fwd(
    fwd: F, *, device_type: str | None = None, cast_inputs: DtypeLike | None = None
) -> F: ...
@overload
def custom_fwd(
    fwd: None = None, *, device_type: str | None = None, cast_inputs: DtypeLike | None = None
) -> Callable[[F], F]: ...
def custom_fwd(
    fwd: Callable[..., Any] | None = None,
    *,
    device_type: str | None = None,
    cast_inputs: DtypeLike | None = None,
) -> Callable[..., Any]:
    """Decorate the ``forward`` of an autograd function (torch's `Function`, Paddle's `PyLayer`).

    Args:
        fwd: the forward; its first argument is the context object.
        device_type: accepted for `torch.amp.custom_fwd`'s sake; regions cover every device.
        cast_inputs: None runs ``forward`` under the policy in force. A dtype (``"float32"``,
            ``torch.float16``, ...) casts the incoming float16, bfloat16 and float32 tensors to it
            and runs ``forward`` with mixed precision off. It has no effect outside regions.

    Semantics: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.custom_fwd
    """
    target = None if cast_inputs is None else _eligible_name(cast_inputs)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=target)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        policy = current_policy()
        if target is None or not is_autocast_enabled():
            ctx._unamp_policy = policy
            return fwd(ctx, *args, **kwargs)
        ctx._unamp_policy = _OFF
        with policy_region(_OFF):
            return fwd(ctx, *_cast(args, target), **_cast(kwargs, target))

    setattr(forward, CAST_INPUTS, target)
    return forward


@overload
def custom_bwd(bwd: F, *, device_type: str | None = None) -> F: ...
@overload
def custom_bwd(bwd: None = None, *, device_type: str | None = None) -> Callable[[F], F]: ...
def custom_bwd(
    bwd: Callable[..., Any] | None = None, *, device_type: str | None = None
) -> Callable[..., Any]:
    """Decorate the ``backward`` of a function whose ``forward`` has `custom_fwd`.

    It runs under the forward's policy.

    Semantics: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.custom_bwd
    """
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with policy_region(ctx._unamp_policy or _OFF):
            return bwd(ctx, *args, **kwargs)

    setattr(backward, AS_FORWARD, True)
    return backward


def _eligible_name(dtype: object) -> str:
    name = dtype_name(dtype)
    if name not in ELIGIBLE:
        raise ValueError(
            f"cast_inputs {shortened(dtype)} is not a dtype that unamp casts to; "
            f"valid: {', '.join(ELIGIBLE)}"
        )
    return name


def _cast(value: object, dtype: str) -> Any:
    """Cast every eligible tensor in a value, and in nested tuples, lists and mappings."""
    if isinstance(value, Mapping):
        return {_cast(k, dtype): _cast(v, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_cast(item, dtype) for item in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    for adapter in registry.adapters_in_use():
        if adapter.is_tensor(value) and adapter.dtype_of(value) in ELIGIBLE:
            return adapter.cast(value, dtype)
    return value
