"""Report every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import paddle

from unamp._function_types import Keywords
from unamp.adapter import observing
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.observing import ObservedPlan, Reporter, follow_calls, keep_call
from unamp.adapter.open_traces import Layers, Observer, Sink, parameter_hook, traces
from unamp.adapter.patching import Patches
from unamp.adapter.performing import Outcome
from unamp.adapter.registered import SecondRun
from unamp.adapter.replacing import CodePatch
from unamp.adapter.shadowing import DRAWS, IN_PLACE, LeftOut
from unamp.policy import Rule
from unamp_paddle.casting import cast, tensors
from unamp_paddle.kept_calls import CALLS
from unamp_paddle.operators import Operator
from unamp_paddle.state import FLOAT32, NAMES, Tensor, Value, thread

T = TypeVar("T")

_call = CodePatch(paddle.nn.Layer.__call__, follow_calls(thread))
_layers = Patches(lambda: (_call,))


def observe(
    sink: Sink, values: bool, patched: AbstractContextManager[None], without_region: ObservedPlan
) -> AbstractContextManager[None]:
    """Report the operations of this thread to `sink`; see `unamp.adapter.observing.observe`."""
    observer = Observer(
        "paddle", sink, values, Layers(paddle.nn.Layer.named_sublayers, follow=_follow_parameters)
    )
    return observing.observe(thread, observer, _layers, patched, without_region)


def report(
    op: str,
    operator: Operator,
    rule: Rule,
    run: Callable[[], Outcome],
    args: Sequence[object],
    kwargs: Keywords,
    low: Callable[[str], object],
) -> object:
    """Run one operation, and report it; `low` runs it a second time, in the named low dtype."""
    before = _drawn() if traces.shadow is not None else None
    written = (
        keep_call(CALLS, op, operator.name, args, kwargs) if paddle.in_dynamic_mode() else None
    )

    def second(dtype: str) -> object:
        if _drawn() != before:
            raise LeftOut(DRAWS)
        with paddle.no_grad():
            return low(dtype)

    return _reporter.report_call(op, operator, rule, run, args, kwargs, second, written, NAMES)


def _drawn() -> list[list[str]]:
    """Return the state of Paddle's generators, as printed: it changes with each random number.

    Addresses in the text are left out.
    """
    return [
        [part for part in str(state).split() if not part.startswith("0x")]
        for state in paddle.get_rng_state()
    ]


def _numbers(tensor: Tensor) -> Any:
    with paddle.no_grad():
        return cast(tensor, FLOAT32).numpy().astype("float64").reshape(-1)


def _follow(tensor: Tensor, hook: GradientHook, result: int) -> Tensor:
    """Have a hook receive the gradient of a result, if the result needs one."""
    if not tensor.stop_gradient:
        tensor.register_hook(_reporter.taking(hook, result))
        # Never removed: the object that removes it keeps the tensor and its graph alive. It does
        # nothing once the trace is closed.
    return tensor


def _follow_parameters(path: str, network: paddle.nn.Layer) -> None:
    """Put hooks on a network's parameters for a trace; see `unamp.adapter.open_traces.Layers`."""
    if not paddle.in_dynamic_mode():
        return
    for name, parameter in network.named_parameters():
        if (
            not parameter.stop_gradient
            and (hook := parameter_hook(f"{path}.{name}", parameter)) is not None
        ):
            hook.when_closed(parameter.register_hook(_reporter.taking(hook, 0)).remove)


_reporter = Reporter(
    thread,
    tensors,
    lambda tensor: str(tensor.dtype).removeprefix("paddle."),
    _numbers,
    _follow,
    paddle.in_dynamic_mode,
)


report_registered = _reporter.report_registered


@contextmanager
def second_run(tensors: Sequence[Tensor | Value]) -> Iterator[SecondRun]:
    """Yield the function that runs a registered operation again; see `unamp.adapter.registered`."""
    before, same = _drawn(), [unchanged(tensor) for tensor in tensors]

    def run(call: Callable[[], T]) -> T:
        if not all(is_same() for is_same in same):
            raise LeftOut(IN_PLACE)
        if _drawn() != before:
            raise LeftOut(DRAWS)
        with paddle.no_grad():
            return call()

    yield run


def unchanged(value: Tensor | Value) -> Callable[[], bool]:
    """Return the function that tells whether a tensor is unchanged; a program's value always is."""
    if not paddle.in_dynamic_mode():
        return lambda: True
    version = value.inplace_version
    return lambda: bool(value.inplace_version == version)
