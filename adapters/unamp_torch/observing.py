"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp_torch.state import CPU, CUDA, NATIVE_KEYS, TRACED, excluded, listen, set_excluded, thread

if TYPE_CHECKING:
    from unamp_torch.kernels import Operator

__all__ = ["observe", "report"]

#: What does not compute: casts, views, copies and creation. By packet name, below the dispatcher's autograd keys.
_NOT_COMPUTING = frozenset(
    "_to_copy alias as_strided clone contiguous copy copy_ detach diagonal empty empty_like empty_strided expand fill_ full "
    "full_like lift_fresh new_empty new_zeros ones_like permute reshape select set_ slice split split_with_sizes squeeze t "
    "transpose unbind unfold unsqueeze view zero_ zeros zeros_like _unsafe_view _reshape_alias _local_scalar_dense".split()
)


@contextmanager
def observe(sink: Callable[[OpRecord], None]) -> Iterator[None]:
    """Report the operations of this thread to `sink`; an outer observer waits. All kernels must be installed."""
    before, thread.sink = thread.sink, sink
    listen(thread.plan)
    try:
        yield
    finally:
        thread.sink = before
        listen(thread.plan)


def report(operator: Operator, run: Callable[[Operator], Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation and report what it computed in."""
    sink, thread.sink = thread.sink, None
    plan = thread.plan
    inputs = tuple(_name(t.dtype) for t in operator.eligible.tensors(args, kwargs) if t.is_floating_point())
    watch = _Watch(first_only=operator.eligible.single)

    def call(*given: Any, **named: Any) -> Any:
        watch.given(operator.eligible.tensors(given, named))
        with watch:
            return operator.call(*given, **named)

    thread.emulated = False
    set_excluded(TRACED.key, True)  # an operation is reported whole
    try:
        result = run(operator.calling(call))
    finally:
        set_excluded(TRACED.key, False)
        thread.sink = sink
    if torch._guards.TracingContext.try_get() is None:
        rule = Rule.UNTOUCHED if plan is None else plan.rule(operator.op)
        compute = plan.policy.dtype if thread.emulated and plan is not None else watch.compute() if inputs else None
        sink(OpRecord(operator.op, operator.name, rule, inputs, compute, _result_dtype(result), thread.emulated))
    return result


class _Watch(TorchDispatchMode):
    """Sees the operators below autograd and autocast, with the tensors that their kernels are really given."""

    def __init__(self, *, first_only: bool) -> None:
        super().__init__()
        self.first_only = first_only
        self.arguments: list[torch.dtype] = []
        self.seen: list[torch.dtype] = []
        self.moved: list[torch.dtype] = []

    def given(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note what the operation is called with, where native autocast does not come in between."""
        floating = [t for t in tensors if t.is_floating_point()]
        if floating and excluded(NATIVE_KEYS[CUDA if floating[0].is_cuda else CPU]):
            self.arguments = [self._dtype(floating)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        floating = [t for t in _flat(args) if t.is_floating_point()]
        if floating:
            computes = func.overloadpacket.__name__ not in _NOT_COMPUTING
            (self.seen if computes else self.moved).append(self._dtype(floating))
        return func(*args, **(kwargs or {}))

    def _dtype(self, tensors: list[torch.Tensor]) -> torch.dtype:
        # An operator with inputs of differing dtypes computes in float32; parameters and statistics of a norm do not count,
        # nor do scalars.
        counting = tensors[:1] if self.first_only else [t for t in tensors if t.dim()] or tensors
        return torch.float32 if any(t.dtype is torch.float32 for t in counting) else counting[0].dtype

    def compute(self) -> str | None:
        # An operation counts as low if it was called in low or any of its steps was low: that is where its precision went.
        # (Some kernels widen what they are given to accumulate.)
        dtypes = self.seen or self.arguments or self.moved[-1:]
        low = next((d for d in (*self.arguments, *dtypes) if d in (torch.float16, torch.bfloat16)), None)
        return _name(low or dtypes[0]) if dtypes else None


def _flat(args: Any) -> Iterator[torch.Tensor]:
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def _result_dtype(result: Any) -> str | None:
    tensors = _flat((result,))
    return next((_name(t.dtype) for t in tensors if t.is_floating_point()), None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
