"""Reports of every operation of the vocabulary that runs, for `unamp.trace`.

While a thread is traced, `jax.jit` is switched off in it: jitted functions run operation by
operation, as they are written. So each operation is seen each time that it runs, inside of them,
too, with the numbers of its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import is_
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np
from jax._src import core, source_info_util
from jax._src.interpreters import batching

from unamp.adapter import observing
from unamp.adapter.arguments import Opened
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.kept_calls import Kept
from unamp.adapter.observing import Reporter
from unamp.adapter.open_traces import Layers, Observer, Sink, parameter_hook, traces
from unamp.adapter.patching import Patches
from unamp.adapter.records import OpRecord
from unamp.adapter.registered import SecondRun
from unamp.adapter.shadowing import CHANGES_STATE, LeftOut
from unamp.policy import Rule
from unamp_jax.casting import dtype_of, with_numbers
from unamp_jax.gradient_hooks import Bind, Later, bind, followed, named_leaves
from unamp_jax.networks import may_be_copy, structure_of
from unamp_jax.state import CONTEXT, Plan, PyTree, thread

if TYPE_CHECKING:
    import jax.numpy as jnp

    from unamp_jax.networks import Layer

ResultT = TypeVar("ResultT")


class JaxLayers(Layers):
    """The layers that a thread is inside of; outside of them, the names of `jax.named_scope`."""

    @property
    def path(self) -> str | None:
        """The place of the thread, with the innermost layer's name.

        None outside of layers and of named scopes.
        """
        inside = super().path
        return inside or _scope()

    def _unnamed(self, layer: Layer) -> str:
        """Return the name of a layer, or of the one that it is a copy of.

        Transformations make their arguments anew.
        """
        named = [(name, own) for name, own in self._names.values() if type(own) is type(layer)]
        like = structure_of(layer) if named else None
        alike = {
            name for name, own in named if structure_of(own) == like and may_be_copy(layer, own)
        }
        if len(alike) != 1:
            return super()._unnamed(layer)
        (name,) = alike
        self._names[id(layer)] = name, layer
        self._add(name, layer)
        return name


def _scope() -> str | None:
    """Return the thread's named scopes, without the names of the transformations around them."""
    names = re.sub(r"\w+\(|\)", "", str(source_info_util.current_name_stack()))
    return ".".join(filter(None, names.split("/"))) or None


def _own_name(layer: Layer) -> str:
    """Return the name that a layer of linen's or Keras's has itself; else its class."""
    name = getattr(layer, "name", None)
    return name if isinstance(name, str) else type(layer).__name__


def leaves_with_dtypes(value: PyTree) -> Iterator[jax.Array]:
    """Return the arrays in a value, however deep."""
    return (
        leaf for leaf in jax.tree.leaves(value) if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    )


def follow_parameters(gradients: Sequence[PyTree]) -> Sequence[PyTree]:
    """Report the gradients that a pullback returns to traces, and return them.

    Args:
        gradients: a pytree for each argument of the differentiated function. One that is a single
            array has no name.
    """
    observer = thread.sink
    if observer is None or not traces.gradients:
        return gradients
    several = len(gradients) > 1
    for n, argument in enumerate(gradients):
        for name, leaf in named_leaves(argument):
            full = observer.layers.of_parameter(name) or (f"{n}.{name}" if several else name)
            if name and (hook := parameter_hook(full)) is not None:
                Later(0, hook).take(leaf)
    return gradients


@contextmanager
def observe(
    sink: Sink,
    values: bool,
    named: Callable[[Layer], Iterable[tuple[str, Layer]]],
    layers: Patches | None,
    patched: AbstractContextManager[None],
    without_region: Plan,
) -> Iterator[None]:
    """Report the operations of this thread to `sink`; see `unamp.adapter.observing.observe`.

    Args:
        named: gives the layers inside a network, with their names.
    """
    observer = Observer("jax", sink, values, JaxLayers(named, _own_name))
    with jax.disable_jit(), observing.observe(thread, observer, layers, patched, without_region):
        try:
            yield
        finally:
            if values:
                jax.effects_barrier()


def report(
    op: str,
    native: str,
    rule: Rule,
    given: Sequence[jax.core.AbstractValue | jax.ShapeDtypeStruct],
    target: jnp.dtype | None,
    result: ResultT,
    *,
    emulated: bool = False,
    written: str | None = None,
    bind: Bind = bind,
    low: Callable[[str], PyTree],
    kept: Kept | None,
) -> ResultT:
    """Report one operation, and return the result to go on with.

    Its gradient is reported, too, where a trace wants it.

    Args:
        given: the tensors that the rule casts, or objects with their dtypes and shapes.
        target: the dtype that they were cast to; None for none.
        written: the equation of an einsum.
        bind: binds a primitive to a result.
        low: computes the operation a second time in a low dtype.
        kept: the operation's arguments, where a trace keeps them.
    """
    observer = thread.sink
    if observer is None or traces.waiting:
        return result
    reporter = _Reporter(bind)
    inputs = reporter.dtypes(given)
    compute = str(target) if target is not None else inputs[0] if inputs else None
    record = OpRecord(
        op,
        native,
        rule,
        inputs,
        compute,
        None,
        emulated,
        input_shapes=reporter.shapes(given),
        equation=written,
    )
    going_on = reporter.report(
        observer, record, reporter.sizes(given), result, first_only=True, low=low, kept=kept
    )
    others = {
        id(old): new
        for old, new in zip(reporter.floating(result), going_on, strict=True)
        if new is not old
    }
    return jax.tree.map(lambda leaf: others.get(id(leaf), leaf), result) if others else result


class _Reporter(Reporter):
    """The reporter of JAX's operations.

    The primitives that report gradients are bound before there are numbers, and before the record.

    Args:
        through: binds a primitive to a result.
    """

    def __init__(self, through: Bind) -> None:
        super().__init__(thread, leaves_with_dtypes, dtype_of, _numbers)
        self._through = through

    def send(self, observer: Observer, record: OpRecord, found: list[jax.Array]) -> list[jax.Array]:
        going_on, later = followed(found, self._through) if traces.gradients else (found, [])

        def follow(hook: GradientHook) -> None:
            for each in later:
                each.hook = hook

        placed = record._replace(layer=observer.layers.path)

        def arrived(*numbers: jax.Array) -> None:
            observer.report(placed, lambda: self.values(numbers), follow)

        tracers = [leaf for leaf in found if isinstance(leaf, core.Tracer)]
        if not observer.values or not tracers:
            arrived(*found)
        elif any(isinstance(leaf, batching.BatchTracer) for leaf in tracers):
            # a callback would be called for each of a batch
            observer.report(record, lambda: None, follow)
        else:  # inside of a transformation, or of a program that is being compiled
            with CONTEXT(None):
                jax.debug.callback(arrived, *found)
                # the record belongs to this step of the trace, and comes before its gradient
                jax.effects_barrier()
        return going_on


def _numbers(tensor: jax.Array) -> np.ndarray:
    """Return a tensor's values as one row of float64 numbers, inside of `jax.grad` too."""
    return np.asarray(with_numbers(tensor)).astype("float64").reshape(-1)


def check_state(before: Sequence[object], after: Sequence[object]) -> None:
    """Raise `LeftOut` where an operation has replaced arrays of its layer.

    A second run would do so again.
    """
    if len(before) != len(after) or any(
        old is not new for old, new in zip(before, after, strict=True)
    ):
        raise LeftOut(CHANGES_STATE)


report_registered = _Reporter(bind).report_registered


def second_run(tensors: Sequence[jax.Array]) -> AbstractContextManager[SecondRun]:
    """Return a context with the function that runs a registered operation again.

    See `unamp.adapter.registered`. Arrays do not change, so that nothing is watched.
    """
    return nullcontext(lambda call: call())


def opened(value: object) -> Opened | None:
    """Return the leaves of a pytree, modules of flax and equinox among them.

    See `unamp.adapter.registered`.
    """
    leaves, form = jax.tree.flatten(value)
    return None if jax.tree_util.treedef_is_leaf(form) else (leaves, form.unflatten)


def unchanged(value: PyTree) -> Callable[[], bool]:
    """Return the function that tells whether a pytree is unchanged.

    A module of flax's holds state, which calls replace.
    """
    before, form = jax.tree.flatten(value)

    def is_unchanged() -> bool:
        after, now = jax.tree.flatten(value)
        return form == now and all(map(is_, before, after))

    return is_unchanged
