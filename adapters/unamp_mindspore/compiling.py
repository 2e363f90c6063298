"""Compile graphs under the policy in force: of `mindspore.jit`, and of cells in GRAPH_MODE.

A graph is compiled from the source of its functions, so the replacements of PyNative mode have no
effect in it. Instead, the function or cell is bound to the policy while it is compiled
(`unamp_mindspore.binding`). The policy becomes part of the name under which MindSpore keeps the
graph: each policy gets a graph of its own.

The compiler does not run unamp's decorators either. It reads a decorated function, wherever in a
graph, under the policy of its decorator.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from mindspore import nn

from unamp._function_types import Function
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp.amp_warnings import graph_ran
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy
from unamp_mindspore.binding import (
    WITHOUT_POLICY,
    binding,
    computed_by,
    layer_rules,
    policy_of_cell,
)
from unamp_mindspore.capturing import CAPTURE_HOOKS
from unamp_mindspore.copies import function_copy
from unamp_mindspore.decorators import inside
from unamp_mindspore.drawing import inside_drawing
from unamp_mindspore.graph_calls import BOUND, CASTS_NOTHING
from unamp_mindspore.moved import api, jit_context, jit_trace
from unamp_mindspore.parsing import PARSER_HOOKS, graph, graph_under
from unamp_mindspore.resolving import RESOLVING_HOOKS
from unamp_mindspore.state import thread
from unamp_mindspore.strategies import STRATEGY

if TYPE_CHECKING:
    from mindspore.graph.api import _CellGraphExecutor, _JitExecutor  # where it is since 2.9

#: Held while a graph is compiled or run under a policy, which changes the function or cell for a
#: moment. Not held without a policy: a running graph may call back into Python in another thread,
#: which may run a graph, too, and would wait for ever.
_lock = threading.RLock()


def _in_force() -> Policy | None:
    plan = thread.plan
    return plan.policy if plan is not None and plan.policy.active else None


@contextmanager
def _attached(to: Function | nn.Cell, policy: Policy | None) -> Iterator[None]:
    """Bind the root of a graph, a function or cell, to a policy while the context is open."""
    held = vars(to)
    bound = None if policy is None else binding(policy)
    if bound is not None:
        mine = {BOUND: bound, STRATEGY: bound.strategy}
        function = bound.layer_function(to) if isinstance(to, nn.Cell) else None
        if function is not None:
            mine.update(computed_by(to, function))
    else:
        # With no strategy at its root, a graph would reuse the types of an operation from one part
        # in the next, and lose the cast of a part that has a policy.
        mine = {} if held.get(STRATEGY) is not None else {STRATEGY: CASTS_NOTHING}
    before = {name: held[name] for name in mine if name in held}
    held.update(mine)
    try:
        yield
    finally:
        for name in mine:
            held.pop(name, None)
        held.update(before)


def _policy_for(target: nn.Cell | None, entry: Function) -> Policy | None:
    """Return the policy of a graph: its entry's innermost decorator's, else the one in force."""
    if isinstance(target, WITHOUT_POLICY):
        return None
    is_cell = isinstance(target, nn.Cell) and entry == target.construct
    policy, casts = policy_of_cell(target, _in_force()) if is_cell else inside(entry, _in_force())
    if casts:
        raise NotExpressible(
            f"{getattr(entry, '__qualname__', 'a function')} is decorated with "
            "custom_fwd(cast_inputs=...), and what MindSpore compiles as a whole: the compiler "
            "does not run decorators; compile what calls it, cast in its body, or call it in "
            "PYNATIVE_MODE without mindspore.jit"
        )
    return policy if target is None else inside_drawing(target, policy)


@contextmanager
def _cell_under_policy(cell: nn.Cell, entry: Function) -> Iterator[str]:
    """Have a cell compiled, looked up and run as the graph of its policy.

    Yields the suffix of the graph's name.
    """
    policy = _policy_for(cell, entry)
    with (
        nullcontext() if policy is None else _lock,
        _attached(cell, policy),
        graph_under(policy) as suffix,
    ):
        yield suffix


@contextmanager
def _executor_under_policy(executor: _JitExecutor) -> Iterator[None]:
    """Have a `_JitExecutor` compile, look up and run the graph of its policy."""
    function, cell, extend = executor.fn, executor.obj, executor._cell_cache_key_extend
    if cell is not None:
        with _cell_under_policy(cell, getattr(cell, function.__name__, function)) as suffix:
            executor._cell_cache_key_extend = extend + suffix
            try:
                yield
            finally:
                executor._cell_cache_key_extend = extend
        return
    policy = _policy_for(None, function)
    with nullcontext() if policy is None else _lock, graph_under(policy) as suffix:
        if policy is not None:
            executor.fn = binding(policy).root(function)
        elif layer_rules.used:
            executor.fn = _copied(function, layer_rules.key)
        executor._cell_cache_key_extend = extend + suffix
        try:
            with _attached(executor.fn, policy):
                yield
        finally:
            executor.fn, executor._cell_cache_key_extend = function, extend


@as_replacement
def _executor_runs(original: Function, /, self: _JitExecutor, *args: Any, **kwargs: Any) -> Any:
    """Wrap `_JitExecutor.__call__`, so that each policy has a graph of its own."""
    _warn_if_traced()
    with _executor_under_policy(self):
        return original(self, *args, **kwargs)


@as_replacement
def _executor_compiles(original: Function, /, self: _JitExecutor, *args: Any, **kwargs: Any) -> Any:
    """Wrap `_JitExecutor.compile`, which an export calls without running the graph."""
    if graph.compiled:  # called by `_executor_runs`, which has bound the function
        return original(self, *args, **kwargs)
    with _executor_under_policy(self):
        return original(self, *args, **kwargs)


def _warn_if_traced() -> None:
    if thread.sink is not None:
        graph_ran(
            "mindspore",
            "mindspore.jit",
            "call the function without mindspore.jit, in PYNATIVE_MODE",
        )


@lru_cache(KEPT_POLICIES)
def _copied(function: types.FunctionType, rules: object) -> types.FunctionType:
    """Return the copy of a function for a set of layer rules: parsed code is kept by identity."""
    return function_copy(inspect.unwrap(function))


@as_replacement
def _cell_runs(original: Function, /, self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    """Wrap `Cell.compile_and_run`, so that each policy has a graph of its own."""
    _warn_if_traced()
    with _cell_under_policy(self, self.construct) as suffix:
        if not suffix:
            return original(self, *args, **kwargs)
        phase = self.phase  # the name under which MindSpore looks a cell's graph up
        self.phase = phase + suffix
        try:
            return original(self, *args, **kwargs)
        finally:
            self.phase = phase


@as_replacement
def _cell_compiles(
    original: Function,
    self: _CellGraphExecutor,
    obj: nn.Cell,
    *args: Any,
    phase: str = "predict",
    **kwargs: Any,
) -> Any:
    """Wrap `_CellGraphExecutor.compile`, which an export calls without running the graph."""
    if graph.compiled:  # called by `_cell_runs`, which has bound the cell
        return original(self, obj, *args, phase=phase, **kwargs)
    with _cell_under_policy(obj, obj.construct) as suffix:
        return original(self, obj, *args, phase=phase + suffix, **kwargs)


@as_replacement
def _trace_begins(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Wrap the function that begins to capture a trace: it raises in a region."""
    if _in_force() is not None:
        raise NotExpressible(
            "MindSpore has no strategy for graphs that mindspore.jit captures from a trace; use "
            'capture_mode="ast", or call the function without mindspore.jit'
        )
    return original(*args, **kwargs)


def check_not_traced() -> None:
    """Check that MindSpore is not capturing a graph from a trace, which would miss the casts.

    Raises:
        NotExpressible: if it is.
    """
    if jit_context() is not None:
        raise NotExpressible(
            "a region cannot be opened inside a function that mindspore.jit captures with "
            'capture_mode="trace" (nor after such a function raised: MindSpore goes on with its '
            'trace); open it around the call of one with capture_mode="ast"'
        )


#: The patch of the compilers that is needed only while a region is open.
TRACE_HOOK = CodePatch(jit_trace._jit_trace_begin, _trace_begins)


@cache
def install() -> None:
    """Have each graph compiled under its policy, from now on.

    These patches stay: a decorated function may be compiled or exported while no region is open,
    and the compiler never runs its wrapper, which would open one.
    """
    call = api._JitExecutor.__call__
    for patch in (
        CodePatch(getattr(call, "__wrapped__", call), _executor_runs),
        CodePatch(api._JitExecutor.compile, _executor_compiles),
        CodePatch(nn.Cell.compile_and_run, _cell_runs),
        CodePatch(api._CellGraphExecutor.compile, _cell_compiles),
        *PARSER_HOOKS,
        *RESOLVING_HOOKS,
        *CAPTURE_HOOKS,
    ):
        patch.apply()
