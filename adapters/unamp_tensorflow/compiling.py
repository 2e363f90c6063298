"""Regions and `tf.function`.

While a function is traced, Python runs, and regions inside it and around it act as they do in eager mode: casts become nodes
of the graph. Two things have to be seen to. TensorFlow remembers a function's graphs by the types of its arguments and by a
context of its own, and would run a graph that was traced under one policy under another: the policy becomes part of that
context. And a loop's values and a branch's results have one dtype each, or TensorFlow raises: where a policy changes that,
it is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

from unamp.adapter.layers import RulesInForce
from unamp.amp_warnings import graph_ran
from unamp.regions import keeps_defaults_out
from unamp_tensorflow.casting import cast_back, eligible_dtype
from unamp_tensorflow.state import FLOAT32, Function, thread

__all__ = [
    "branches", "dataset_reduce", "dataset_scan", "dataset_statement", "if_statement", "indexed_case", "keyed", "layer_rules",
    "while_loop", "while_statement",
]  # fmt: skip

#: The rules that layers have: what is traced follows them.
layer_rules = RulesInForce()

# Each function here returns what stands in for a function of TensorFlow, given that function.


def keyed(original: Function) -> Function:
    """Put the policy in force, and the rules of layers, into the key of a function's graphs."""

    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        plan = thread.plan
        if thread.sink is not None and tf.executing_eagerly():
            graph_ran(
                "tensorflow",
                "tf.function",
                "call tf.config.run_functions_eagerly(True) before, or pass run_eagerly=True to fit",
            )
        if plan is not None and plan.policy.active:
            policy: Any = plan.key
        else:  # a region that changes nothing still keeps the default regions of libraries out
            policy = "off" if keeps_defaults_out("tensorflow") else None
        rules = layer_rules.key
        if policy is None and rules is None:
            return made
        outside = made.context
        # Any of its fields would do: they are compared, and not looked at.
        return made._replace(context=outside._replace(variable_policy=(outside.variable_policy, policy, rules)))

    return make_function_context


# --- loops: what is carried around keeps the dtype that it starts with -------------------------------------------------------


def while_loop(original: Function) -> Function:
    """Keep the dtypes of `tf.while_loop`, and so of `tf.scan`, `tf.map_fn` and Keras's recurrent layers."""

    def loop(cond: Any, body: Any, loop_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(cond, body, loop_vars, *args, **kwargs)
        start = [eligible_dtype(value) for value in tf.nest.flatten(loop_vars)]

        def steady(*values: Any) -> Any:
            found = body(*values)
            flat = tf.nest.flatten(found)
            if len(flat) != len(start):
                return found
            return tf.nest.pack_sequence_as(found, [cast_back(value, own) for value, own in zip(flat, start, strict=True)])

        return original(cond, steady, loop_vars, *args, **kwargs)

    return loop


def while_statement(original: Function) -> Function:
    """Keep the dtypes of the loops that AutoGraph makes of `while` and `for`."""

    def _tf_while_stmt(test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(test, body, get_state, set_state, *rest)
        start = [eligible_dtype(value) for value in get_state()]

        def steady() -> None:
            body()
            set_state(tuple(cast_back(value, own) for value, own in zip(get_state(), start, strict=True)))

        return original(test, steady, get_state, set_state, *rest)

    return _tf_while_stmt


def dataset_statement(original: Function) -> Function:
    """Keep the dtypes of the loops that AutoGraph makes of `for` over a dataset."""

    def for_stmt(data: Any, extra_test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(data, extra_test, body, get_state, set_state, *rest)
        start = [eligible_dtype(value) for value in get_state()]

        def steady(item: Any) -> None:
            body(item)
            set_state(tuple(cast_back(value, own) for value, own in zip(get_state(), start, strict=True)))

        return original(data, extra_test, steady, get_state, set_state, *rest)

    return for_stmt


def dataset_reduce(original: Function) -> Function:
    """Keep the dtypes of `tf.data.Dataset.reduce`."""

    def reduce(self: Any, initial_state: Any, reduce_func: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None:
            reduce_func = _steady(reduce_func, lambda state, new: _all_back(new, state))
        return original(self, initial_state, reduce_func, *args, **kwargs)

    return reduce


def dataset_scan(original: Function) -> Function:
    """Keep the dtypes of `tf.data.Dataset.scan`, whose function returns a state and an element."""

    def _scan(input_dataset: Any, initial_state: Any, scan_func: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None:
            scan_func = _steady(scan_func, lambda state, pair: (_all_back(pair[0], state), *pair[1:]))
        return original(input_dataset, initial_state, scan_func, *args, **kwargs)

    return _scan


def _steady(function: Function, restore: Callable[[Any, Any], Any]) -> Function:
    converted = api.tf_convert(function, ag_ctx.control_status_ctx())  # as tf.data does with what it is given

    def steady(state: Any, *element: Any) -> Any:
        return restore(state, converted(state, *element))

    unconverted: Function = api.do_not_convert(steady)
    return unconverted


def _all_back(values: Any, before: Any) -> Any:
    flat, start = tf.nest.flatten(values), tf.nest.flatten(before)
    if len(flat) != len(start):
        return values
    return tf.nest.pack_sequence_as(
        values, [cast_back(value, eligible_dtype(own)) for value, own in zip(flat, start, strict=True)]
    )


# --- branches: where one is low and another float32, both are float32 --------------------------------------------------------


class _Differ(Exception):
    """Raised where branches differ in a dtype, which shows only once the later one is traced."""


class _BranchDtypes:
    """The dtypes that branches return, which must be the same."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}

    def same(self, values: list[Any]) -> list[Any]:
        """Return a branch's results, widened where another branch's are known to be float32."""
        found = []
        for n, value in enumerate(values):
            value = cast_back(value, self.wanted.get(n, 0))
            if number := eligible_dtype(value):
                self._seen.setdefault(n, set()).add(number)
            found.append(value)
        return found

    def check(self) -> None:
        """Raise an error where branches differ, and this shows only now."""
        differing = {n for n, numbers in self._seen.items() if len(numbers) > 1}
        self._seen.clear()
        if differing - self.wanted.keys():
            self.wanted.update(dict.fromkeys(differing, FLOAT32))
            raise _Differ

    def until_same(self, run: Callable[[], Any]) -> Any:
        """Return the result of `run` once its branches agree: they are traced a second time where they did not."""
        try:
            return run()
        except _Differ:
            return run()


def _agreeing(dtypes: _BranchDtypes, functions: Sequence[Function]) -> list[Function]:
    last = functions[-1]

    def wrapped(function: Function) -> Function:
        def branch(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            flat = dtypes.same(tf.nest.flatten(result, expand_composites=False))
            if function is last:
                dtypes.check()
            return tf.nest.pack_sequence_as(result, flat)

        return branch

    return [wrapped(function) for function in functions]


def branches(original: Function) -> Function:
    """Let the branches of `tf.cond` agree."""

    def cond_v2(pred: Any, true_fn: Any, false_fn: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(pred, true_fn, false_fn, *args, **kwargs)
        dtypes = _BranchDtypes()
        both = _agreeing(dtypes, [true_fn, lambda: false_fn()])
        return dtypes.until_same(lambda: original(pred, *both, *args, **kwargs))

    return cond_v2


def indexed_case(original: Function) -> Function:
    """Let the branches of `tf.switch_case` agree."""

    def case(branch_index: Any, branch_fns: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(branch_index, branch_fns, *args, **kwargs)
        dtypes = _BranchDtypes()
        functions = _agreeing(dtypes, [*branch_fns[:-1], lambda: branch_fns[-1]()])
        return dtypes.until_same(lambda: original(branch_index, functions, *args, **kwargs))

    return case


def if_statement(original: Function) -> Function:
    """Let the branches agree that AutoGraph makes of `if`; it compares their dtypes before `tf.cond` does."""

    def _tf_if_stmt(cond: Any, body: Any, orelse: Any, get_state: Any, set_state: Any, *rest: Any) -> Any:
        if thread.plan is None:
            return original(cond, body, orelse, get_state, set_state, *rest)
        dtypes, before = _BranchDtypes(), get_state()

        def same(branch: Any, *, last: bool) -> Callable[[], None]:
            def run() -> None:
                branch()
                set_state(tuple(dtypes.same(list(get_state()))))
                if last:
                    dtypes.check()

            return run

        def attempt() -> Any:
            set_state(before)
            return original(cond, same(body, last=False), same(orelse, last=True), get_state, set_state, *rest)

        return dtypes.until_same(attempt)

    return _tf_if_stmt
