"""Regions and `tf.function`.

While a function is traced, Python runs, and regions inside it and around it act as they do in eager mode: casts become nodes
of the graph. Two things have to be seen to. A graph that was traced under one policy is never run under another: the policy
becomes part of the key under which TensorFlow remembers it. And a loop's values and a branch's results have one dtype each:
where a policy changes that, it is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

from unamp.adapter.state import suspended
from unamp_tensorflow.casting import cast, convert, kind
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, thread

__all__ = [
    "branches", "dataset_reduce", "dataset_scan", "dataset_statement", "if_statement", "indexed_case", "keyed", "packing",
    "tensor_array", "while_loop", "while_statement",
]  # fmt: skip


def keyed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The key of a function's graphs, with the policy in force."""

    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        plan = thread.plan
        if plan is None or not plan.policy.active:
            return made
        outside = made.context
        # Any of its fields would do: they are compared, and not looked at.
        return made._replace(context=outside._replace(variable_policy=(outside.variable_policy, plan.key)))

    return make_function_context


# --- loops: what is carried around keeps the dtype that it starts with -------------------------------------------------------


def while_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `tf.while_loop`, and so for `tf.scan`, `tf.map_fn` and Keras's recurrent layers."""

    def loop(cond: Any, body: Any, loop_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(cond, body, loop_vars, *args, **kwargs)
        start = [kind(value) for value in tf.nest.flatten(loop_vars)]

        def steady(*values: Any) -> Any:
            found = body(*values)
            flat = tf.nest.flatten(found)
            if len(flat) != len(start):
                return found
            return tf.nest.pack_sequence_as(found, [_back(value, own) for value, own in zip(flat, start, strict=True)])

        return original(cond, steady, loop_vars, *args, **kwargs)

    return loop


def while_statement(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the loops that AutoGraph makes of `while` and `for`."""

    def _tf_while_stmt(test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(test, body, get_state, set_state, *rest)
        start = [kind(value) for value in get_state()]

        def steady() -> None:
            body()
            set_state(tuple(_back(value, own) for value, own in zip(get_state(), start, strict=True)))

        return original(test, steady, get_state, set_state, *rest)

    return _tf_while_stmt


def dataset_statement(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the loops that AutoGraph makes of `for` over a dataset."""

    def for_stmt(data: Any, extra_test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(data, extra_test, body, get_state, set_state, *rest)
        start = [kind(value) for value in get_state()]

        def steady(item: Any) -> None:
            body(item)
            set_state(tuple(_back(value, own) for value, own in zip(get_state(), start, strict=True)))

        return original(data, extra_test, steady, get_state, set_state, *rest)

    return for_stmt


def dataset_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `tf.data.Dataset.reduce`."""

    def reduce(self: Any, initial_state: Any, reduce_func: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None:
            reduce_func = _steady(reduce_func, lambda state, new: _all_back(new, state))
        return original(self, initial_state, reduce_func, *args, **kwargs)

    return reduce


def dataset_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `tf.data.Dataset.scan`, whose function returns a state and an element."""

    def _scan(input_dataset: Any, initial_state: Any, scan_func: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None:
            scan_func = _steady(scan_func, lambda state, pair: (_all_back(pair[0], state), *pair[1:]))
        return original(input_dataset, initial_state, scan_func, *args, **kwargs)

    return _scan


def _steady(function: Any, put_back: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    converted = api.tf_convert(function, ag_ctx.control_status_ctx())  # as tf.data does with what it is given

    @api.do_not_convert
    def steady(state: Any, *element: Any) -> Any:
        return put_back(state, converted(state, *element))

    return steady


def _all_back(values: Any, before: Any) -> Any:
    flat, start = tf.nest.flatten(values), tf.nest.flatten(before)
    if len(flat) != len(start):
        return values
    return tf.nest.pack_sequence_as(values, [_back(value, kind(own)) for value, own in zip(flat, start, strict=True)])


def _back(value: Any, own: int) -> Any:
    return cast(value, own) if own and kind(value) else value


def tensor_array(position: int, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For the methods of `tf.TensorArray` that take values: all of one array have one dtype."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: Any, *args: Any, **kwargs: Any) -> Any:
            if thread.plan is not None:
                own = self.dtype.as_datatype_enum
                if name in kwargs:
                    kwargs[name] = _back(kwargs[name], own if kind(kwargs[name]) else 0)
                elif len(args) >= position:
                    given = list(args)
                    given[position - 1] = _back(given[position - 1], own)
                    args = tuple(given)
            return original(self, *args, **kwargs)

        return write

    return replacement


def packing(original: Callable[..., Any]) -> Callable[..., Any]:
    """For lists of tensors where one tensor is expected: a dtype that is asked for is an explicit cast."""

    def _autopacking_conversion_function(v: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(v, dtype, *args, **kwargs)
        found = {kind(value) for value in tf.nest.flatten(v)} - {0}
        if dtype is None:  # nobody asked: the tensors need one dtype, and what puts them together follows its rule
            return original(convert(cast, FLOAT32, v) if len(found) > 1 else v, dtype, *args, **kwargs)
        wanted = tf.as_dtype(dtype).as_datatype_enum
        with suspended(thread):
            return original(convert(cast, wanted, v) if wanted in ELIGIBLE else v, dtype, *args, **kwargs)

    return _autopacking_conversion_function


# --- branches: where one is low and another float32, both are float32 --------------------------------------------------------


class _Differ(Exception):
    """Branches differ in a dtype, which shows only once the later one is traced."""


class _Harmony:
    """Makes branches return the same dtypes."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}

    def same(self, values: list[Any]) -> list[Any]:
        """A branch's results, widened where another branch's are known to be float32."""
        found = []
        for n, value in enumerate(values):
            value = _back(value, self.wanted.get(n, 0))
            if number := kind(value):
                self._seen.setdefault(n, set()).add(number)
            found.append(value)
        return found

    def check(self) -> None:
        """Raise where branches differ that could be told apart only now."""
        differing = {n for n, numbers in self._seen.items() if len(numbers) > 1}
        self._seen.clear()
        if differing - self.wanted.keys():
            self.wanted.update(dict.fromkeys(differing, FLOAT32))
            raise _Differ

    def until_same(self, run: Callable[[], Any]) -> Any:
        """What `run` returns once its branches agree."""
        try:
            return run()
        except _Differ:
            return run()


def _harmonised(harmony: _Harmony, functions: list[Any]) -> list[Any]:
    last = functions[-1]

    def wrapped(function: Any) -> Any:
        def branch(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            flat = harmony.same(tf.nest.flatten(result, expand_composites=False))
            if function is last:
                harmony.check()
            return tf.nest.pack_sequence_as(result, flat)

        return branch

    return [wrapped(function) for function in functions]


def branches(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `tf.cond`."""

    def cond_v2(pred: Any, true_fn: Any, false_fn: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(pred, true_fn, false_fn, *args, **kwargs)
        harmony = _Harmony()
        both = _harmonised(harmony, [true_fn, lambda: false_fn()])
        return harmony.until_same(lambda: original(pred, *both, *args, **kwargs))

    return cond_v2


def indexed_case(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `tf.switch_case`."""

    def case(branch_index: Any, branch_fns: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(branch_index, branch_fns, *args, **kwargs)
        harmony = _Harmony()
        functions = _harmonised(harmony, [*branch_fns[:-1], lambda: branch_fns[-1]()])
        return harmony.until_same(lambda: original(branch_index, functions, *args, **kwargs))

    return case


def if_statement(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the branches that AutoGraph makes of `if`; it compares their dtypes before `tf.cond` does."""

    def _tf_if_stmt(cond: Any, body: Any, orelse: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(cond, body, orelse, get_state, set_state, *rest)
        harmony, before = _Harmony(), get_state()

        def same(branch: Any, *, last: bool) -> Callable[[], None]:
            def run() -> None:
                branch()
                set_state(tuple(harmony.same(list(get_state()))))
                if last:
                    harmony.check()

            return run

        def attempt() -> Any:
            set_state(before)
            return original(cond, same(body, last=False), same(orelse, last=True), get_state, set_state, *rest)

        return harmony.until_same(attempt)

    return _tf_if_stmt
