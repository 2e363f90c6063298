"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import nn

from unamp import observing
from unamp.observing import InUse, Layers, Observer, casts, follow_calls, unobserved
from unamp.policy import Rule
from unamp.records import OpRecord, Values
from unamp.replacing import Code
from unamp_mindspore.casting import is_kept, tensors
from unamp_mindspore.state import FLOAT32, LOW, thread

if TYPE_CHECKING:
    from unamp_mindspore.kernels import Operator

__all__ = ["dtype_name", "observe", "report"]


def _named(network: Any) -> Iterable[tuple[str, Any]]:
    return network.cells_and_names()  # type: ignore[no-any-return]


_call = Code(nn.Cell.__call__, follow_calls(thread))
_layers = InUse(_call.put_in, _call.take_out)


@contextmanager
def observe(
    sink: Callable[[OpRecord], None], values: bool, watched: Callable[[], Any], release: Callable[[], None]
) -> Iterator[None]:
    """Report the operations of this thread to `sink`; see `unamp.observing.observe`."""

    def observer(layers: Layers | None) -> Observer:
        return Observer("mindspore", sink, values, layers or Layers(_named))

    with _layers.used(), observing.observe(thread, observer, watched, release):
        yield


def report(op: str, operator: Operator, rule: Rule, run: Callable[[], Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation and report what it computed in."""
    given = _floating([args, kwargs, operator.parameters(args)])
    if operator.activation_only:
        given = given[:1]
    low = thread.plan.low  # type: ignore[union-attr]
    uncast = _sizes(tensor for tensor in given if not is_kept(tensor, low))
    # What an operation is made of is its own affair.
    sink, thread.sink = thread.sink, None
    try:
        result, computed, emulated = run()
    finally:
        thread.sink = sink
    compute = None if computed is None or not given else dtype_name(computed)
    results = _sizes(_floating(result))
    count, moved = casts(rule, uncast, compute, results[:1] if operator.activation_only else results)
    output = results[0][0] if results else None
    inputs = tuple(dtype_name(tensor.dtype) for tensor in given)
    record = OpRecord(op, operator.name, rule, inputs, compute, output, emulated, casts=count, cast_bytes=moved)
    sink.report(record, lambda: _values(result))
    return result


def _values(result: Any) -> Values | None:
    found = _floating(result)
    if not found:
        return None
    with unobserved(thread):
        return Values.of(found[0].shape, [_numbers(tensor) for tensor in found])


def _numbers(tensor: Any) -> Any:
    if tensor.dtype in LOW:
        tensor = tensor.astype(FLOAT32)
    return tensor.asnumpy().astype("float64").reshape(-1)


def _floating(value: Any) -> list[Any]:
    return [tensor for tensor in tensors(value) if "float" in dtype_name(tensor.dtype)]


def _sizes(floating: Iterable[Any]) -> list[tuple[str, int]]:
    return [(dtype_name(tensor.dtype), math.prod(tensor.shape)) for tensor in floating]


def dtype_name(dtype: Any) -> str:
    """The common name of one of MindSpore's dtypes."""
    return str(dtype).lower()
