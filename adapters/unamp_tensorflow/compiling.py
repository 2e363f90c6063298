"""Keep the graphs of `tf.function` by policy, and the dtypes of loops and branches in them.

Tracing a function runs Python, so regions inside and around it act as in eager mode: casts become
nodes of the graph. Two things need care. TensorFlow keeps a function's graphs by the types of its
arguments and by a context, and would run a graph that was traced under one policy under another:
so the policy becomes part of that context. And TensorFlow raises where a loop's value, or the
results of branches, change their dtype: where a rule has done that, a cast restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

from unamp._function_types import Function
from unamp.adapter.layers import RulesInForce
from unamp.adapter.replacing import as_replacement
from unamp.adapter.state import in_regions
from unamp.amp_warnings import graph_ran
from unamp.regions import keeps_defaults_out
from unamp_tensorflow.casting import cast_back, eligible_dtype
from unamp_tensorflow.state import DTYPES, FLOAT32, thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import Value

    #: The functions of AutoGraph that read the variables which a statement changes, and set them.
    GetState: TypeAlias = Callable[[], tuple[Value, ...]]
    SetState: TypeAlias = Callable[[tuple[Value, ...]], None]

T = TypeVar("T")

#: The rules for single layers: a traced function depends on them, too.
layer_rules = RulesInForce()

# Each function decorated with this is called with the original, which it replaces, and with the
# original's arguments.
_in_regions = in_regions(thread)


@as_replacement
def keyed(original: Function, /, *args: Any, **kwargs: Any) -> object:
    """Put the policy in force, and the rules of layers, into the key of a function's graphs."""
    made = original(*args, **kwargs)
    plan = thread.plan
    if thread.sink is not None and tf.executing_eagerly():
        graph_ran(
            "tensorflow",
            "tf.function",
            "call tf.config.run_functions_eagerly(True) before, or pass run_eagerly=True to fit",
        )
    if plan is not None and plan.policy.active:
        policy: tuple[object, ...] | str | None = plan.key
    else:
        # A region that is switched off keeps the default regions of libraries closed. A graph that
        # was traced outside may have one in it, and must not run here.
        policy = "off" if keeps_defaults_out("tensorflow") else None
    rules = layer_rules.key
    if policy is None and rules is None:
        return made
    outside = made.context
    # Any field of the context would do: TensorFlow only compares them.
    return made._replace(
        context=outside._replace(variable_policy=(outside.variable_policy, policy, rules))
    )


# --- loops: their variables keep the dtypes that they start with ----------------------------------


@_in_regions
def while_loop(
    original: Function, cond: Function, body: Function, loop_vars: Value, *args: Any, **kwargs: Any
) -> Value:
    """Keep the dtypes of `tf.while_loop`, by which `tf.scan`, `tf.map_fn` and Keras also loop."""
    start = _dtypes(loop_vars)
    return original(
        cond, lambda *values: _in_dtypes(body(*values), start), loop_vars, *args, **kwargs
    )


@_in_regions
def while_statement(
    original: Function,
    test: Callable[[], object],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    *rest: object,
) -> object:
    """Keep the dtypes of the loops that AutoGraph makes from `while` and `for`."""
    return original(test, _steady_body(body, get_state, set_state), get_state, set_state, *rest)


@_in_regions
def dataset_statement(
    original: Function,
    data: tf.data.Dataset,
    extra_test: Callable[[], object] | None,
    body: Function,
    get_state: GetState,
    set_state: SetState,
    *rest: object,
) -> object:
    """Keep the dtypes of the loops that AutoGraph makes from `for` over a dataset."""
    return original(
        data, extra_test, _steady_body(body, get_state, set_state), get_state, set_state, *rest
    )


def _steady_body(body: Function, get_state: GetState, set_state: SetState) -> Function:
    """Return the body of a loop, after which the loop's variables have their present dtypes."""
    start = [_dtype_in_graphs(value) for value in get_state()]

    def steady(*item: Value) -> None:
        body(*item)
        set_state(
            tuple(cast_back(value, own) for value, own in zip(get_state(), start, strict=True))
        )

    return steady


@_in_regions
def dataset_reduce(
    original: Function,
    self: tf.data.Dataset,
    initial_state: Value,
    reduce_func: Function,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Keep the dtypes of `tf.data.Dataset.reduce`."""
    steady = _steady(reduce_func, lambda state, new: _in_dtypes(new, _dtypes(state)))
    return original(self, initial_state, steady, *args, **kwargs)


@_in_regions
def dataset_scan(
    original: Function,
    self: tf.data.Dataset,
    input_dataset: tf.data.Dataset,
    initial_state: Value,
    scan_func: Function,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Keep the dtypes of `tf.data.Dataset.scan`, whose function returns a state and an element."""
    steady = _steady(
        scan_func, lambda state, pair: (_in_dtypes(pair[0], _dtypes(state)), *pair[1:])
    )
    original(self, input_dataset, initial_state, steady, *args, **kwargs)


def _steady(function: Function, restore: Callable[[Value, Value], Value]) -> Function:
    # Converted by AutoGraph here: `tf.data` would convert it, but not the wrapper around it.
    converted = api.tf_convert(function, ag_ctx.control_status_ctx())

    def steady(state: Value, *element: Value) -> Value:
        return restore(state, converted(state, *element))

    unconverted: Function = api.do_not_convert(steady)
    return unconverted


def _dtypes(values: object) -> list[int]:
    return [_dtype_in_graphs(value) for value in tf.nest.flatten(values)]


def _dtype_in_graphs(value: object) -> int:
    """Return the eligible dtype that a value has in a graph, where numbers become tensors, too."""
    if type(value) is float:
        return FLOAT32
    return (
        DTYPES.get(value.dtype.name, 0) if isinstance(value, np.generic) else eligible_dtype(value)
    )


def _in_dtypes(values: Value, dtypes: list[int]) -> Value:
    """Return nested values in dtypes, or unchanged if their structure differs, which will raise."""
    flat = tf.nest.flatten(values)
    if len(flat) != len(dtypes):
        return values
    return tf.nest.pack_sequence_as(
        values, [cast_back(value, own) for value, own in zip(flat, dtypes, strict=True)]
    )


# --- datasets that are joined: where low and float32 meet, all become float32 ---------------------


@_in_regions
def dataset_concatenation(
    original: Function,
    self: tf.data.Dataset,
    first: tf.data.Dataset,
    second: tf.data.Dataset,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Give the datasets of `tf.data.Dataset.concatenate` the same dtypes."""
    original(self, *_agreeing_datasets([first, second]), *args, **kwargs)


@_in_regions
def dataset_selection(
    original: Function,
    self: tf.data.Dataset,
    selector: tf.data.Dataset,
    datasets: Iterable[tf.data.Dataset],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Give the datasets of `sample_from_datasets` and `choose_from_datasets` the same dtypes."""
    original(self, selector, _agreeing_datasets([*datasets]), *args, **kwargs)


def _agreeing_datasets(datasets: list[tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Return datasets with float32 wherever the eligible dtypes of their elements differ.

    Datasets whose elements differ in structure stay as they are: TensorFlow raises for them.
    """
    stated = [_stated_dtypes(each) for each in datasets]
    if len({len(dtypes) for dtypes in stated}) != 1:
        return datasets
    places = [{*found} - {0} for found in zip(*stated, strict=True)]
    wanted = [FLOAT32 if len(found) > 1 else 0 for found in places]
    return [_dataset_in_dtypes(each, wanted) if any(wanted) else each for each in datasets]


def _stated_dtypes(dataset: tf.data.Dataset) -> list[int]:
    """Return the eligible dtypes of a dataset's elements, 0 for any other."""
    dtypes = [getattr(spec, "dtype", None) for spec in tf.nest.flatten(dataset.element_spec)]
    return [DTYPES.get(dtype.name, 0) if dtype is not None else 0 for dtype in dtypes]


def _dataset_in_dtypes(dataset: tf.data.Dataset, dtypes: list[int]) -> tf.data.Dataset:
    unpacked = type(dataset.element_spec) is tuple  # `map` passes the items of a tuple one by one

    def element(*items: Value) -> Value:
        return _in_dtypes(items if unpacked else items[0], dtypes)

    return dataset.map(api.do_not_convert(element))


# --- branches: where low and float32 meet, all become float32 -------------------------------------


class _Differ(Exception):
    """Raised when the last branch is traced and its dtypes differ from those of another."""


class _BranchDtypes:
    """The dtypes of the results of branches, which must agree.

    A branch that is traced first cannot know the dtypes of the next. So where the last one differs,
    all are traced again, with casts to float32.
    """

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}

    def same(self, values: list[Value]) -> list[Value]:
        """Return a branch's results, widened where branches are known to differ."""
        found = []
        for n, value in enumerate(values):
            value = cast_back(value, self.wanted.get(n, 0))
            if number := _dtype_in_graphs(value):
                self._seen.setdefault(n, set()).add(number)
            found.append(value)
        return found

    def check(self) -> None:
        """Raise `_Differ` where branches differ and no cast was made for that yet."""
        differing = {n for n, numbers in self._seen.items() if len(numbers) > 1}
        self._seen.clear()
        if differing - self.wanted.keys():
            self.wanted.update(dict.fromkeys(differing, FLOAT32))
            raise _Differ

    def until_same(self, run: Callable[[], T]) -> T:
        """Return the result of `run`, which traces the branches; run it again if they differ."""
        try:
            return run()
        except _Differ:
            return run()


def _agreeing(dtypes: _BranchDtypes, functions: Sequence[Function]) -> list[Function]:
    last = functions[-1]  # a function of its own: a user may pass one function for several branches

    def wrapped(function: Function) -> Function:
        def branch(*args: Any, **kwargs: Any) -> Value:
            result = function(*args, **kwargs)
            flat = dtypes.same(tf.nest.flatten(result, expand_composites=False))
            if function is last:
                dtypes.check()
            return tf.nest.pack_sequence_as(result, flat)

        return branch

    return [wrapped(function) for function in functions]


@_in_regions
def branches(
    original: Function,
    pred: object,
    true_fn: Callable[[], Value],
    false_fn: Callable[[], Value],
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Give the branches of `tf.cond` the same dtypes."""
    dtypes = _BranchDtypes()
    both = _agreeing(dtypes, [true_fn, lambda: false_fn()])
    return dtypes.until_same(lambda: original(pred, *both, *args, **kwargs))


@_in_regions
def indexed_case(
    original: Function,
    branch_index: object,
    branch_fns: Sequence[Callable[[], Value]],
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Give the branches of `tf.switch_case` the same dtypes."""
    dtypes = _BranchDtypes()
    functions = _agreeing(dtypes, [*branch_fns[:-1], lambda: branch_fns[-1]()])
    return dtypes.until_same(lambda: original(branch_index, functions, *args, **kwargs))


@_in_regions
def if_statement(
    original: Function,
    cond: object,
    body: Callable[[], None],
    orelse: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    *rest: object,
) -> object:
    """Give the branches that AutoGraph makes from `if` the same dtypes.

    AutoGraph compares these itself, before `tf.cond` does.
    """
    dtypes, before = _BranchDtypes(), get_state()

    def same(branch: Callable[[], None], *, last: bool) -> Callable[[], None]:
        def run() -> None:
            branch()
            set_state(tuple(dtypes.same(list(get_state()))))
            if last:
                dtypes.check()

        return run

    def attempt() -> object:
        set_state(before)  # tracing a branch has changed the variables
        return original(
            cond, same(body, last=False), same(orelse, last=True), get_state, set_state, *rest
        )

    return dtypes.until_same(attempt)
