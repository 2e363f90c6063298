"""`all_finite` and the loss scalers of `unamp.dialects.mindspore` inside compiled graphs.

A number of Python would be a constant in a graph, so the state of a scaler is in parameters there.
From then on the scaler outside reads and writes these. None of it follows the graph's policy.
"""

from __future__ import annotations

import mindspore
from mindspore import Parameter, ops
from mindspore.ops.functional import mixed_precision_cast

from unamp.adapter.state import suspended
from unamp.errors import NotExpressible
from unamp.scaling.loss_scale import LossScale
from unamp_mindspore.graph_calls import BOUND, unbound
from unamp_mindspore.state import FLOAT32, Tensor, thread


@unbound
def _all_finite(inputs):  # type: ignore[no-untyped-def]
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    finite = ops.ones((), mindspore.bool_)
    for each in inputs:
        if each is not None:
            finite = ops.logical_and(
                finite, ops.ReduceAll()(ops.isfinite(mixed_precision_cast(FLOAT32, each)))
            )
    return finite


@unbound
def _times(factor, value):  # type: ignore[no-untyped-def]
    return ops.cast(ops.cast(value, FLOAT32) * factor, value.dtype)


@mindspore.jit_class
class _GraphScaler:
    """The scaler that graphs use; it follows `unamp.scaling.loss_scale.LossScale.after`."""

    def __init__(self, state: LossScale) -> None:
        self.dynamic = state.dynamic
        self.scale_value = _parameter("scale_value", state.scale)
        self.counter = _parameter("counter", state.growth_tracker)
        self.window = _parameter("scale_window", state.growth_interval)
        self.up = _parameter("growth_factor", state.growth_factor)
        self.down = _parameter("backoff_factor", state.backoff_factor)
        self.least = _parameter("minimum", state.minimum)

    @unbound
    def scale(self, inputs):  # type: ignore[no-untyped-def]
        return ops.HyperMap()(ops.Partial()(_times, self.scale_value), inputs)

    @unbound
    def unscale(self, inputs):  # type: ignore[no-untyped-def]
        return ops.HyperMap()(ops.Partial()(_times, ops.Reciprocal()(self.scale_value)), inputs)

    @unbound
    def adjust(self, grads_finite):  # type: ignore[no-untyped-def]
        if not self.dynamic:
            return False
        count = self.counter + 1
        goes_on = ops.logical_and(grads_finite, count < self.window)
        grown = self.scale_value * self.up
        more = ops.select(ops.isfinite(grown), grown, self.scale_value)
        less = ops.maximum(self.scale_value * self.down, self.least)
        moved = ops.select(goes_on, self.scale_value, ops.select(grads_finite, more, less))
        ops.assign(self.scale_value, moved)
        ops.assign(self.counter, ops.select(goes_on, count, ops.zeros_like(count)))
        return grads_finite


setattr(_GraphScaler, BOUND, None)  # its methods follow no policy


class _InGraphs:
    """The access of a scaler outside to its `_GraphScaler`."""

    def __init__(self, state: LossScale) -> None:
        _check(state)
        self.scaler = _GraphScaler(state)

    def read(self, state: LossScale) -> LossScale:
        """Return the state with the scale and count that graphs left; this waits for graphs."""
        scale, counter = self.scaler.scale_value.asnumpy(), self.scaler.counter.asnumpy()
        return state._replace(scale=float(scale), growth_tracker=int(counter))

    def write(self, state: LossScale) -> None:
        """Give graphs another state."""
        _check(state)
        scaler = self.scaler
        if state.dynamic is not scaler.dynamic:
            raise NotExpressible(
                "a scaler that is in a compiled graph stays dynamic, or static; load the state "
                "before the first call"
            )
        values = {
            scaler.scale_value: state.scale,
            scaler.counter: state.growth_tracker,
            scaler.window: state.growth_interval,
            scaler.up: state.growth_factor,
            scaler.down: state.backoff_factor,
            scaler.least: state.minimum,
        }
        with suspended(thread):
            for parameter, value in values.items():
                # In place: a graph keeps the old tensor if the parameter gets another (`set_data`).
                ops.assign(parameter, Tensor(value, parameter.dtype))


def _parameter(name: str, value: float) -> Parameter:
    dtype = mindspore.int32 if isinstance(value, int) else FLOAT32
    return Parameter(Tensor(value, dtype), name=name, requires_grad=False)


def _check(state: LossScale) -> None:
    if state.backoff_interval != 1:
        raise NotExpressible(
            "a scaler in a compiled graph backs off after one overflow; use backoff_interval=1, or "
            "PYNATIVE_MODE"
        )


def in_graphs(found: object) -> object:
    """Return the replacement of `all_finite` or a scaler in graphs; any other object as it is."""
    from unamp.dialects.mindspore import _scalers  # few graphs have one in them

    if found is _scalers.all_finite:
        return _all_finite
    if not isinstance(found, _scalers.Scaling):
        return found
    if found.in_graphs is None:
        found.in_graphs = _InGraphs(found._state)
    return found.in_graphs.scaler
