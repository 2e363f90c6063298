"""Report every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import numpy as np
from mindspore import nn

from unamp._function_types import Args, Keywords
from unamp.adapter import observing
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.observing import ObservedPlan, Reporter, follow_calls, keep_call, unobserved
from unamp.adapter.open_traces import Layers, Observer, Sink, parameter_hook, traces
from unamp.adapter.patching import Patches
from unamp.adapter.performing import Outcome
from unamp.adapter.registered import SecondRun
from unamp.adapter.replacing import CodePatch
from unamp.adapter.shadowing import CHANGES_STATE, DRAWS, LeftOut
from unamp.policy import Rule
from unamp_mindspore.casting import tensors
from unamp_mindspore.kept_calls import CALLS
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import FLOAT32, LOW, NAMES, Dtype, Tensor, on_cpu, thread

_call = CodePatch(nn.Cell.__call__, follow_calls(thread))
_layers = Patches(lambda: (_call,))


def observe(
    sink: Sink, values: bool, patched: AbstractContextManager[None], without_region: ObservedPlan
) -> AbstractContextManager[None]:
    """Report the operations of this thread to `sink`; see `unamp.adapter.observing.observe`."""
    observer = Observer(
        "mindspore", sink, values, Layers(nn.Cell.cells_and_names, follow=_follow_parameters)
    )
    return observing.observe(thread, observer, _layers, patched, without_region)


def report(
    op: str,
    operator: Operator,
    rule: Rule,
    run: Callable[[], Outcome],
    args: Args,
    kwargs: Keywords,
    low: Callable[[str], object],
) -> object:
    """Run one operation, and report it; `low` runs it a second time, in the named low dtype."""
    before = _state(operator, args)
    written = keep_call(
        CALLS, op, operator.name, *_arguments(operator, args, kwargs), layer=operator.layer
    )

    def second(dtype: str) -> object:
        if operator.layer and any(map(_drops, args[0].cells())):
            raise LeftOut(DRAWS)
        if not all(map(np.array_equal, before, _state(operator, args))):
            raise LeftOut(CHANGES_STATE)
        return low(dtype)

    return _reporter.report_call(op, operator, rule, run, args, kwargs, second, written, NAMES)


def _arguments(operator: Operator, args: Args, kwargs: Keywords) -> tuple[Args, Keywords]:
    """Return the arguments of a call, with the attributes that a primitive was made with."""
    if operator.layer or not operator.bound:
        return args, kwargs
    return args[1:], {**getattr(args[0], "init_attrs", {}), **kwargs}


def _state(operator: Operator, args: Args) -> list[np.ndarray]:
    """Return the values of a layer's running statistics; none where no shadow is wanted."""
    if traces.shadow is None or not operator.layer:
        return []
    with unobserved(thread):
        return [
            parameter.asnumpy().copy()
            for parameter in args[0].get_parameters()
            if not parameter.requires_grad
        ]


def _drops(cell: nn.Cell) -> bool:
    """Return whether a cell, or one inside it, is an active dropout, which draws numbers."""
    return any(
        inner.training and "Dropout" in type(inner).__name__ and getattr(inner, "p", 1.0) > 0
        for _, inner in cell.cells_and_names()
    )


def dtype_name(dtype: Dtype) -> str:
    """Return the common name of one of MindSpore's dtypes."""
    return str(dtype).lower()


def _numbers(tensor: Tensor) -> Any:
    wide = tensor.astype(FLOAT32) if tensor.dtype in LOW else tensor
    return wide.asnumpy().astype("float64").reshape(-1)


def _follow(tensor: Tensor, hook: GradientHook, result: int) -> Tensor:
    """Have a hook receive the gradient of a result, if there will be one."""
    take = _reporter.taking(hook, result)

    def passed_by(gradient: Tensor) -> Tensor:
        take(gradient)
        return gradient  # the backward pass goes on with the hook's result

    hook.when_closed(tensor.register_hook(passed_by).remove)
    return tensor


def _follow_parameters(path: str, network: nn.Cell) -> None:
    """Put hooks on a network's parameters for a trace; see `unamp.adapter.open_traces.Layers`."""
    for name, parameter in network.parameters_and_names():
        if (
            parameter.requires_grad
            and (hook := parameter_hook(f"{path}.{name}", parameter)) is not None
        ):
            _follow(parameter, hook, 0)


def unchanged(value: Tensor) -> Callable[[], bool]:
    """Return the function that tells whether a tensor is unchanged.

    It compares numbers on the CPU, where not every change makes a new version. Elsewhere that would
    take too long.
    """
    if not on_cpu():
        version = value._version
        return lambda: bool(value._version == version)
    before = value.asnumpy().copy()
    return lambda: np.array_equal(value.asnumpy(), before, equal_nan=True)


_reporter = Reporter(thread, tensors, lambda tensor: dtype_name(tensor.dtype), _numbers, _follow)

report_registered = _reporter.report_registered


def second_run(tensors: Sequence[Tensor]) -> AbstractContextManager[SecondRun]:
    """Refuse to run a registered operation again: it might draw other numbers, unnoticed."""

    def run(call: Callable[[], object]) -> NoReturn:
        raise LeftOut(
            "MindSpore does not tell whether a registered function draws random numbers: undo() "
            "the registration, and each operation that it is made of is computed a second time"
        )

    return nullcontext(run)
