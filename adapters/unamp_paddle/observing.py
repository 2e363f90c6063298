"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paddle

from unamp import observing
from unamp.observing import InUse, Layers, Observer, casts, follow_calls, unobserved
from unamp.policy import Rule
from unamp.records import OpRecord, Values
from unamp.replacing import Code
from unamp_paddle.casting import cast, is_kept, tensors
from unamp_paddle.state import FLOAT32, thread

if TYPE_CHECKING:
    from unamp_paddle.kernels import Operator

__all__ = ["observe", "report"]


def _named(network: Any) -> Iterable[tuple[str, Any]]:
    return network.named_sublayers()  # type: ignore[no-any-return]


_call = Code(paddle.nn.Layer.__call__, follow_calls(thread))
_layers = InUse(_call.put_in, _call.take_out)


@contextmanager
def observe(
    sink: Callable[[OpRecord], None], values: bool, watched: Callable[[], Any], release: Callable[[], None]
) -> Iterator[None]:
    """Report the operations of this thread to `sink`; see `unamp.observing.observe`."""

    def observer(layers: Layers | None) -> Observer:
        return Observer("paddle", sink, values, layers or Layers(_named))

    with _layers.used(), observing.observe(thread, observer, watched, release):
        yield


def report(op: str, operator: Operator, rule: Rule, run: Callable[[], Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation and report what it computed in."""
    given = _floating([args, kwargs])
    if operator.activation_only:
        given = given[:1]
    low = thread.plan.low  # type: ignore[union-attr]
    uncast = _sizes(tensor for tensor in (*given, *operator.parameters(args).values()) if not is_kept(tensor, low))
    # What an operation is made of is its own affair.
    sink, thread.sink = thread.sink, None
    try:
        result, computed, emulated = run()
    finally:
        thread.sink = sink
    if paddle.in_dynamic_mode():
        compute = None if computed is None or not given else _name(computed)
        results = _sizes(_floating(result))
        count, moved = casts(rule, uncast, compute, results[:1] if operator.activation_only else results)
        output = results[0][0] if results else None
        inputs = tuple(_name(tensor.dtype) for tensor in given)
        record = OpRecord(op, operator.name, rule, inputs, compute, output, emulated, casts=count, cast_bytes=moved)
        sink.report(record, lambda: _values(result))
    return result


def _values(result: Any) -> Values | None:
    found = _floating(result)
    if not found:
        return None
    with unobserved(thread), paddle.no_grad():
        return Values.of(found[0].shape, [cast(tensor, FLOAT32).numpy().astype("float64").reshape(-1) for tensor in found])


def _floating(value: Any) -> list[Any]:
    return [tensor for tensor in tensors(value) if "float" in _name(tensor.dtype)]


def _sizes(floating: Iterable[Any]) -> list[tuple[str, int]]:
    return [(_name(tensor.dtype), math.prod(tensor.shape)) for tensor in floating]


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("paddle.")
