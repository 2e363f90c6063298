"""Report every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record, stop_recording
from tensorflow.python.framework import op_callbacks, op_def_registry

from unamp._compiler_marks import not_converted
from unamp._function_types import Function
from unamp.adapter import keras_models, observing
from unamp.adapter.arguments import Opened, leaves
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.kept_calls import Kept
from unamp.adapter.observing import ObservedPlan, Reporter, equation, follow_calls, unobserved
from unamp.adapter.open_traces import Layers, Observer, Sink, parameter_hook, traces
from unamp.adapter.patching import Patches
from unamp.adapter.records import OpRecord
from unamp.adapter.registered import SecondRun
from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp.adapter.shadowing import CHANGES_STATE, LeftOut
from unamp.dtypes import FLOAT8
from unamp.policy import Rule
from unamp_tensorflow.casting import dtype_of
from unamp_tensorflow.composite_tensors import values
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import DTYPES, NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import Gradient, SomeTensor, Value

T = TypeVar("T")


@cache
def _patches(with_keras: bool) -> Patches:
    # Replaces the methods, not their code: AutoGraph reads the source of Keras's own.
    follow = follow_calls(thread)
    found = [
        AttributePatch(
            tf.GradientTape, "gradient", lambda own: not_converted(_following_variables(own))
        )
    ]
    if with_keras:
        found.append(
            AttributePatch(
                tf.keras.layers.Layer, "__call__", lambda own: not_converted(follow(own))
            )
        )
    return Patches(lambda: found)


def observe(
    sink: Sink, values: bool, patched: AbstractContextManager[None], without_region: ObservedPlan
) -> AbstractContextManager[None]:
    """Report the operations of this thread to `sink`; see `unamp.adapter.observing.observe`."""
    # A layer of Keras has a name of its own.
    layers = Layers(lambda network: (), lambda layer: str(layer.name))
    observer = Observer("tensorflow", sink, values, layers)
    return observing.observe(thread, observer, _patches(keras_in_use()), patched, without_region)


def report(
    observer: Observer | None,
    op: str,
    native: str,
    rule: Rule,
    given: Sequence[Value],
    args: Sequence[Value],
    target: int,
    emulated: bool,
    result: Value,
    low: Callable[[int], Value],
    written: Kept | None,
) -> Value:
    """Report one operation that has been executed; a node of a graph has not.

    Returns the result for the caller, with a hook for its gradient where a trace wants that.

    Args:
        given: the tensors that the rule is about, as the caller passed them.
        args: all arguments of the call; a layer comes first.
        target: the number of the dtype that `given` were cast to; 0 for none.
        low: computes the operation under the rule LOW, for the number of a dtype.
        written: the operation's arguments, where a trace keeps them.
    """
    if observer is None or not tf.executing_eagerly():
        return result
    floating = _reporter.floating(given)
    inputs = _reporter.dtypes(floating)
    compute = NAMES[target] if target and inputs else inputs[0] if inputs else None
    record = OpRecord(
        op, native, rule, inputs, compute, None, emulated,
        input_shapes=_reporter.shapes(floating),
        equation=equation(op, [getattr(value, "equation", value) for value in args]),
    )  # fmt: skip

    def second(dtype: str) -> Value:
        if dtype in FLOAT8:
            raise LeftOut("this framework's adapter computes no product from float8")
        with stop_recording():
            return low(DTYPES[dtype])

    going_on = _reporter.report(
        observer,
        record,
        _reporter.sizes(floating),
        result,
        first_only=True,
        low=second,
        kept=written,
    )
    others = {
        id(old): new
        for old, new in zip(_reporter.floating(result), going_on, strict=True)
        if new is not old
    }
    if not others:
        return result
    return tf.nest.map_structure(
        lambda each: others.get(id(each), each), result, expand_composites=True
    )


class State:
    """A layer's state that is not trained: running statistics, seeds.

    Args:
        layer: the layer; None for an operation without state.
    """

    def __init__(self, layer: tf.keras.layers.Layer | None) -> None:
        self._layer = layer
        self._before = self._values()

    def _values(self) -> list[np.ndarray]:
        if self._layer is None or not tf.executing_eagerly():
            return []
        with unobserved(thread), stop_recording():
            return [variable.numpy() for variable in self._layer.non_trainable_variables]

    def check(self) -> None:
        """Raise `LeftOut` if the state has changed: a second run would change it again."""
        after = self._values()
        if len(after) != len(self._before) or not all(map(np.array_equal, self._before, after)):
            raise LeftOut(CHANGES_STATE)


def _tensors(value: Value) -> Iterator[SomeTensor]:
    return (
        values(leaf)
        for leaf in leaves(value)
        if getattr(leaf, "dtype", None) is not None and hasattr(leaf, "shape")
    )


def _numbers(tensor: SomeTensor) -> np.ndarray:
    # In NumPy, so that no operation of TensorFlow runs.
    return (
        np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
        .astype("float64")
        .reshape(-1)
    )


def _follow(tensor: SomeTensor, hook: GradientHook, result: int) -> SomeTensor:
    """Return a result whose gradient passes through the hook: TensorFlow's tensors take none."""
    if not could_possibly_record():
        return tensor

    def passed_by(gradient: Gradient) -> Gradient:
        _take(hook, gradient, result)
        return gradient

    with unobserved(thread):
        return tf.custom_gradient(lambda value: (tf.identity(value), passed_by))(tensor)


def _take(hook: GradientHook, gradient: Gradient, result: int) -> None:
    """Give a hook a gradient, or the reason why it is not known."""
    if isinstance(gradient, tf.IndexedSlices):
        hook.leave_out("its gradient is sparse (tf.IndexedSlices)", result)
    elif tf.is_symbolic_tensor(gradient):
        hook.leave_out("its gradient was computed in a graph", result)
    else:
        _reporter.taking(hook, result)(gradient)


@as_replacement
def _following_variables(
    original: Function,
    /,
    tape: tf.GradientTape,
    target: Value,
    sources: Value,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Wrap `tf.GradientTape.gradient`, so that it reports the gradients of variables."""
    found = original(tape, target, sources, *args, **kwargs)
    observer = thread.sink
    if observer is not None and traces.gradients and tf.executing_eagerly():
        names = observer.layers.variables()
        for variable, each in zip(tf.nest.flatten(sources), tf.nest.flatten(found), strict=True):
            if each is None or not isinstance(variable, _variables()):
                continue
            if (
                hook := parameter_hook(names.get(id(variable)) or variable_name(variable))
            ) is not None:
                _take(hook, each, 0)
    return found


def _variables() -> tuple[type, ...]:
    return (tf.Variable, keras_models.library().Variable) if keras_in_use() else (tf.Variable,)


def variable_name(variable: tf.Variable | tf.keras.Variable) -> str:
    """Return the name of a variable with dots: Keras' path, or TensorFlow's name."""
    path = getattr(variable, "path", None) or variable.name.partition(":")[0]
    return str(path).replace("/", ".")


_reporter = Reporter(thread, _tensors, dtype_of, _numbers, _follow, tf.executing_eagerly)


report_registered = _reporter.report_registered


@contextmanager
def second_run(tensors: Sequence[SomeTensor]) -> Iterator[SecondRun]:
    """Yield the function that runs a registered operation again; see `unamp.adapter.registered`."""
    stateful: list[str] = []

    def note(op_type: str | bytes, *_: object, **__: object) -> None:
        op = op_type.decode() if isinstance(op_type, bytes) else op_type
        known = op_def_registry.get(op)
        if op not in _READS and (known is None or known.is_stateful):
            stateful.append(op)

    def run(call: Callable[[], T]) -> T:
        if stateful:
            raise LeftOut(
                f"it runs {stateful[0]}, which may draw random numbers or change a variable"
            )
        with stop_recording():
            return call()

    op_callbacks.add_op_callback(note)
    try:
        yield run
    finally:
        op_callbacks.remove_op_callback(note)


#: Operation types that TensorFlow calls stateful, but that only read state.
_READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
)


def opened(value: object) -> Opened | None:
    """Return the leaves of a structure of `tf.nest`, extension types among them.

    See `unamp.adapter.registered`.
    """
    if not tf.nest.is_nested(value) and not isinstance(value, tf.experimental.ExtensionType):
        return None

    def made_of(others: Sequence[Value]) -> Value:
        made = tf.nest.pack_sequence_as(value, others, expand_composites=True)
        if isinstance(made, tf.experimental.ExtensionType):
            made.__validate__()  # `pack_sequence_as` does not validate
        return made

    return tf.nest.flatten(value, expand_composites=True), made_of
