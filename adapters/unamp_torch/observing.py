"""Reports of every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from unamp._function_types import Keywords
from unamp.adapter.keras_models import is_layer
from unamp.adapter.observing import Reporter, equation, reporting_to, unreported
from unamp.adapter.open_traces import Layers, Observer, Sink, traces
from unamp.adapter.patching import Patches
from unamp.adapter.records import OpRecord, Shape, Values
from unamp.policy import Rule
from unamp_torch import gradient_hooks, kept_calls, shadowing
from unamp_torch.casting import ELIGIBLE
from unamp_torch.listing import Action, Operator
from unamp_torch.networks import named_layers
from unamp_torch.numbers import flat, floating, has_numbers, row
from unamp_torch.state import (
    CPU,
    CUDA,
    LOW,
    NATIVE_KEYS,
    TRACED,
    Plan,
    dtype_name,
    excluded,
    include_kernels,
    thread,
    without_kernels,
)

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from unamp_torch.listing import Overload

#: The operators that do not compute: casts, views, copies and creation. By packet name, as they run
#: below the dispatcher's autograd keys.
_NOT_COMPUTING = frozenset(
    "_to_copy alias as_strided clone contiguous copy copy_ detach diagonal empty empty_like "
    "empty_strided expand fill_ full full_like lift_fresh new_empty new_zeros ones_like permute "
    "reshape select set_ slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze "
    "view zero_ zeros zeros_like _unsafe_view _reshape_alias _local_scalar_dense".split()
)

_TO_COPY = torch.ops.aten._to_copy.default

#: The kernels that read float16 and compute in float32 where their third argument says so: CUDA
#: needs no copy for it.
WIDENING = frozenset({torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default})
_has_memory = torch._C._has_storage


def _enter_layer(module: torch.nn.Module, args: tuple[object, ...]) -> None:
    # A compiler would otherwise trace into this, and put it into its graph.
    if not torch.compiler.is_compiling() and thread.sink is not None:
        thread.sink.layers.enter(module)


def _leave_layer(module: torch.nn.Module, args: tuple[object, ...], result: object) -> None:
    if not torch.compiler.is_compiling() and thread.sink is not None:
        thread.sink.layers.leave()


class _LayerHooks:
    """PyTorch's own hooks on every module's forward, as a patch that replaces nothing."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def apply(self) -> None:
        self._handles.append(register_module_forward_pre_hook(_enter_layer))
        self._handles.append(register_module_forward_hook(_leave_layer, always_call=True))

    def undo(self) -> None:
        while self._handles:
            self._handles.pop().remove()


_layer_hooks = _LayerHooks()
_layers = Patches(lambda: (_layer_hooks,))


def _own_name(layer: torch.nn.Module) -> str:
    """Return the name of a layer outside the network's tree: Keras' name for it, else its class."""
    return str(layer.name) if is_layer(layer, "torch") else type(layer).__name__


@contextmanager
def observe(sink: Sink, values: bool, needed: Iterable[Patches]) -> Iterator[None]:
    """Report the operations of this thread to `sink`; an outer observer waits.

    See `unamp.adapter.Adapter.observe`. The kernels on `TRACED` must be installed for every
    operator: they ask for the observer of their thread.

    Args:
        needed: patches to apply meanwhile, without which reports would differ from what runs.
    """
    observer = Observer(
        "torch", sink, values, Layers(named_layers, _own_name, gradient_hooks.follow_parameters)
    )
    with ExitStack() as held:
        for patches in needed:
            held.enter_context(patches.patched())
        with _layers.patched(), reporting(observer):
            yield


@contextmanager
def reporting(observer: Observer | None) -> Iterator[None]:
    """Report this thread's operations to another observer or to none, with the kernels for that."""
    try:
        with reporting_to(thread, observer):
            include_kernels(thread.plan)
            yield
    finally:
        include_kernels(thread.plan)


def report(
    operator: Operator,
    run: Callable[[Operator], object],
    args: Sequence[object],
    kwargs: Keywords,
    low: Action,
) -> object:
    """Run one operation and report the dtype that it computed in.

    Args:
        run: carries out the plan in force for the call, given the operator to call.
        low: carries out the rule LOW for a call, whatever the plan in force.
    """
    plan = thread.plan
    given = [t for t in operator.eligible.tensors(args, kwargs) if t.is_floating_point()]
    spy = _Spy(given, first_only=operator.eligible.single)

    original = operator.call
    if (
        traces.float8 is not None
        and thread.sink is not None
        and traces.float8.takes(operator.op, thread.sink.layers.path)
    ):
        original = partial(shadowing.product_in_float8, operator, traces.float8.dtype)

    def call(*given: Any, **named: Any) -> object:
        spy.given(operator.eligible.tensors(given, named))
        spy.step = _Step.DURING
        try:
            return original(*given, **named)
        finally:
            spy.step = _Step.AFTER

    dtype = None if traces.waiting else traces.shadow
    second = None if dtype is None else shadowing.SecondRun(operator, dtype, low, args, kwargs)
    thread.emulated = False
    with _unreported() as observer:
        kept = kept_calls.before(operator, args, kwargs) if _is_running() else None
        with spy:
            result = run(operator.calling(call))
        if _is_running():
            found = floating(result)
            record = _record(operator, plan, given, spy, found)._replace(
                equation=equation(operator.op, args)
            )
            shadow = None if second is None else second.beside(record, result)
            written = None if kept is None else kept.after(next(iter(found), None))
            reporter.send(observer, record._replace(shadow=shadow, call=written), found)
    return result


def report_registered(
    observer: Observer,
    record: OpRecord,
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    low: Callable[[str], Sequence[torch.Tensor]] | None,
) -> Sequence[torch.Tensor]:
    """Report a call of a registered operation; see `unamp.adapter.registered`."""

    def second(dtype: str) -> Sequence[torch.Tensor] | None:
        shadowing.check_seen(results)
        return None if low is None else low(dtype)

    with _unreported():
        return reporter.report_registered(
            observer, record, tensors, results, None if low is None else second
        )


@contextmanager
def _unreported() -> Iterator[Observer]:
    """Report nothing while open: no parts of an operation, second runs, or looks at results."""
    with unreported(thread) as observer, without_kernels(TRACED.key):
        yield observer


def _is_running() -> bool:
    """Return whether operations compute numbers, and no compiler traces them."""
    return torch._guards.TracingContext.try_get() is None


class _Reporter(Reporter):
    def shapes(self, tensors: Iterable[torch.Tensor]) -> tuple[Shape, ...]:
        return tuple(map(_shape, tensors))

    def sizes(self, tensors: Iterable[torch.Tensor]) -> list[tuple[str, int]]:
        return [(dtype_name(each.dtype), each.numel()) for each in tensors]

    def values(self, found: Sequence[torch.Tensor]) -> Values | None:
        return super().values(found) if all(map(has_numbers, found)) else None


reporter = _Reporter(
    thread, flat, lambda tensor: dtype_name(tensor.dtype), row, gradient_hooks.follow, _is_running
)


def _record(
    operator: Operator,
    plan: Plan | None,
    given: list[torch.Tensor],
    spy: _Spy,
    found: list[torch.Tensor],
) -> OpRecord:
    emulated = thread.emulated and plan is not None
    rule = Rule.UNTOUCHED if plan is None else plan.rule(operator.op)
    compute = (
        plan.policy.dtype if plan is not None and emulated else spy.compute() if given else None
    )
    casts, moved = (0, 0) if plan is None else spy.casts(rule, plan.low, emulated=emulated)
    return OpRecord(
        operator.op, operator.name, rule, reporter.dtypes(given), compute,
        next(iter(reporter.dtypes(found)), None), emulated,
        casts=casts, cast_bytes=moved, input_shapes=reporter.shapes(given),
        output_shape=next(iter(reporter.shapes(found)), None),
    )  # fmt: skip


class _Step(Enum):
    """The steps of an operation: the casts before it, itself, and the casts after it."""

    BEFORE, DURING, AFTER = range(3)


class _Spy(TorchDispatchMode):
    """A mode that notes the operators which one operation runs below autograd and autocast.

    It notes the tensors that kernels are given, which need not have the dtype that the rule says:
    native autocast casts on its own, and some operators widen inputs.

    Args:
        inputs: the operation's inputs.
        first_only: whether only the first input counts (norms).
    """

    def __init__(self, inputs: Iterable[torch.Tensor], *, first_only: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = {_memory(tensor) for tensor in inputs}
        self.first_only = first_only
        self.arguments: list[torch.dtype] = []
        self.seen: list[torch.dtype] = []
        self.moved: list[torch.dtype] = []
        self.step = _Step.BEFORE
        self.cast: list[tuple[_Step, torch.dtype, torch.dtype, int]] = []

    def given(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the operation's arguments, where native autocast cannot cast them any more."""
        found = [t for t in tensors if t.is_floating_point()]
        if found and excluded(NATIVE_KEYS[CUDA if found[0].is_cuda else CPU]):
            self.arguments = [self._dtype(found)]

    def __torch_dispatch__(
        self, func: Overload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        if (
            func is _TO_COPY
            and (kwargs or {}).get("dtype") in ELIGIBLE
            and args[0].dtype in ELIGIBLE
        ):
            self._note_cast(args[0], kwargs["dtype"])
        given = floating(args) if self.step is _Step.DURING else []
        if given and func.namespace != "prim":  # prim asks fake tensors for their device
            computes = func.overloadpacket.__name__ not in _NOT_COMPUTING
            widened = func in WIDENING and args[2]
            (self.seen if computes else self.moved).append(
                torch.float32 if widened else self._dtype(given)
            )
        return func(*args, **(kwargs or {}))

    def _note_cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        # During the operation, native autocast casts inputs; any other cast there is the
        # operation's own.
        if self.step is not _Step.DURING or _memory(tensor) in self.inputs:
            self.cast.append((self.step, tensor.dtype, dtype, tensor.numel()))

    def _dtype(self, tensors: list[torch.Tensor]) -> torch.dtype:
        # An operator with inputs of differing dtypes computes in float32; parameters and statistics
        # of a norm do not count, nor do scalars.
        counting = tensors[:1] if self.first_only else [t for t in tensors if t.dim()] or tensors
        return (
            torch.float32 if any(t.dtype is torch.float32 for t in counting) else counting[0].dtype
        )

    def compute(self) -> str | None:
        """Return the dtype computed in; None where no operator that computes got a floating tensor.

        An operation counts as low if it was called in low or any of its steps was low: there its
        precision was lost. (Some kernels widen their inputs to accumulate.)
        """
        dtypes = self.seen or self.arguments or self.moved[-1:]
        low = next((d for d in (*self.arguments, *dtypes) if d in LOW), None)
        return dtype_name(low or dtypes[0]) if dtypes else None

    def casts(self, rule: Rule, low: torch.dtype, *, emulated: bool) -> tuple[int, int]:
        """Return the number of casts a rule took, and how many bytes they read and wrote."""
        wide = torch.float32 if rule in (Rule.FP32, Rule.WIDEST) else None
        target = low if rule in (Rule.LOW, Rule.NARROWEST) else wide
        moved = []
        for step, old, new, size in self.cast:
            # Emulation casts inputs to low and back to float32, and the result to low: on a device
            # with a kernel, there would be the first cast alone.
            back = step is _Step.AFTER and not emulated
            if old is not new and (back or (step is not _Step.AFTER and new is target)):
                moved.append((old.itemsize + new.itemsize) * size)
        return len(moved), sum(moved)


def _memory(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage, shared by its views; no number is read."""
    return int(tensor.untyped_storage()._cdata) if _has_memory(tensor) else id(tensor)


def _shape(tensor: torch.Tensor) -> Shape:
    if tensor.is_nested:  # each of its tensors has a shape of its own
        return (None,) * tensor.dim()
    # a size may be a symbol of a compiler's
    return tuple(size if type(size) is int else None for size in tensor.shape)
