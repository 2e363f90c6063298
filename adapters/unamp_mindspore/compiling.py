"""Regions and compiled graphs: `mindspore.jit`, and cells in GRAPH_MODE.

A graph is compiled from the source of its functions, so nothing that stands in for an operation takes effect in it. What
does is MindSpore's own strategy, with lists of primitives: it is baked into a graph when that is compiled, and never looked
at again. So each policy gets a graph of its own. Its strategy is attached to what is compiled, for as long as that takes, and
the policy becomes part of the name under which MindSpore keeps the graph.

What a decorator of unamp's would do is not in the source either. Where it decorates what a graph is compiled from, its policy
is the graph's; anywhere deeper it is noticed when the compiler gets there (`unamp_mindspore.parsing`).
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from typing import Any

import mindspore
from mindspore import nn
from mindspore._c_expression import amp

from unamp.adapter import major_minor
from unamp.adapter.replacing import CodePatch
from unamp.amp_warnings import graph_ran
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore.capturing import capture_hooks, capture_needed
from unamp_mindspore.decorators import policy_of
from unamp_mindspore.parsing import GraphUnder, graph, layer_rules, parser_hooks, parser_needed
from unamp_mindspore.resolving import resolving_hooks, resolving_needed
from unamp_mindspore.state import DTYPES, on_cpu, thread

if major_minor(mindspore.__version__) < (2, 9):
    from mindspore.common import api, jit_trace
    from mindspore.common.jit_context import jit_context
else:
    from mindspore.graph import api, jit_trace
    from mindspore.graph.jit_context import jit_context

__all__ = ["check_not_traced", "hooks", "install", "needed", "strategy"]

#: Compiling changes what it compiles, for a moment.
_lock = threading.RLock()

_ATTRIBUTE = "amp_strategy"

#: The policy of a graph without one, whose layers may have rules.
_NONE = Policy("O0")


@cache
def strategy(policy: Policy) -> Any:
    """Return MindSpore's own strategy for a policy.

    Raises:
        NotExpressible: where it has none on this device.
    """
    if not policy.active:
        return amp.create_amp_strategy(amp.AmpLevel.AmpO0, DTYPES["float16"], [], [])
    if policy.dtype == "bfloat16" and on_cpu():
        raise NotExpressible(
            "MindSpore's CPU kernels cannot run a graph in bfloat16; use float16, or call the function without mindspore.jit "
            "and in PYNATIVE_MODE, where bfloat16 is emulated"
        )
    if policy.widen_results:
        raise NotExpressible("MindSpore's strategy for graphs cannot widen results; use widen_results=False, or PYNATIVE_MODE")
    if Rule.NARROWEST in policy.rules.values():
        raise NotExpressible(
            f"MindSpore's strategy for graphs widens inputs that differ, where the preset {policy.preset!r} casts them down "
            "for some operations; use another preset, or call the function without mindspore.jit and in PYNATIVE_MODE"
        )
    return amp.create_amp_strategy(amp.AmpLevel.AmpAuto, DTYPES[policy.dtype], *_lists(policy))


def _lists(policy: Policy) -> tuple[list[tuple[str, list[int]]], list[tuple[str, list[int]]]]:
    """Return the primitives that run low, and those in float32, each with the inputs that are cast (none named: all)."""
    low: list[tuple[str, list[int]]] = []
    wide: list[tuple[str, list[int]]] = []
    for op in vocabulary().values():
        rule = _biased(policy) if op.name == "bias_add" else policy.rules[op.name]
        if op.group == "cast" or rule in (Rule.UNTOUCHED, Rule.WIDEST):
            continue
        names = [name for name in op.spellings.get("mindspore", ()) if "." not in name]
        (low if rule is Rule.LOW else wide).extend(
            (name, [0] if op.group == "norm" and rule is Rule.LOW else []) for name in names
        )
    return low, wide


def _biased(policy: Policy) -> Rule:
    """Return the rule for a bias that is added: layers add theirs with a primitive of its own, and it belongs to them."""
    own = "bias_add" in policy.allow or "bias_add" in policy.deny
    return policy.rules["bias_add" if own else "linear"]


def _in_force() -> Policy | None:
    plan = thread.plan
    policy = getattr(plan, "policy", None)
    return policy if policy is not None and policy.active else None


@contextmanager
def _attached(to: Any, policy: Policy) -> Iterator[None]:
    """Have a policy's strategy attached to a function or cell while this is open."""
    held = vars(to)
    before = held.get(_ATTRIBUTE)
    setattr(to, _ATTRIBUTE, strategy(policy))
    try:
        yield
    finally:
        if before is None:
            delattr(to, _ATTRIBUTE)
        else:
            setattr(to, _ATTRIBUTE, before)


def _policy_for(target: Any, entry: Any) -> Policy | None:
    """Return the policy of a graph: that of the innermost decorator on its entry, else the one in force at the call."""
    if isinstance(target, nn.Optimizer):  # what updates parameters is not cast
        return None
    policy = policy_of(entry, otherwise=_in_force())
    # With no strategy at its root, a graph would take what it knows of an operation from one layer to the next.
    return _NONE if policy is None and layer_rules.used else policy


def _cell_under_policy(cell: Any, entry: Any) -> AbstractContextManager[str]:
    """Have a cell compiled, looked up and run as the graph of its policy; give what the graph's name ends with."""
    policy = _policy_for(cell, entry)
    return GraphUnder(None) if policy is None else _cell_under(cell, policy)


@contextmanager
def _cell_under(cell: Any, policy: Policy) -> Iterator[str]:
    with _lock, _attached(cell, policy), GraphUnder(policy) as suffix:
        yield suffix


def _executor_under_policy(executor: Any) -> AbstractContextManager[Any]:
    """Have a `_JitExecutor` compile, look up and run the graph of its policy."""
    function, cell = executor.fn, executor.obj
    policy = _policy_for(cell, function if cell is None else getattr(cell, function.__name__, function))
    return GraphUnder(None) if policy is None else _executor_under(executor, policy)


@contextmanager
def _executor_under(executor: Any, policy: Policy) -> Iterator[None]:
    function, cell, extend = executor.fn, executor.obj, executor._cell_cache_key_extend
    with GraphUnder(policy) if cell is None else _cell_under(cell, policy) as suffix:
        executor._cell_cache_key_extend = extend + suffix
        if cell is None:
            executor.fn = _copied(inspect.unwrap(function), policy, layer_rules.key)
        try:
            yield
        finally:
            executor.fn, executor._cell_cache_key_extend = function, extend


def _executor_runs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_JitExecutor.__call__`, so that each policy has a graph of its own."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it is one
        _warn_if_traced()
        with _executor_under_policy(self):
            return original(self, *args, **kwargs)

    return __call__


def _executor_compiles(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_JitExecutor.compile`, which exports call without running anything."""

    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if graph.compiled:
            return original(self, *args, **kwargs)
        with _executor_under_policy(self):
            return original(self, *args, **kwargs)

    return compile


def _warn_if_traced() -> None:
    if thread.sink is not None:
        graph_ran("mindspore", "mindspore.jit", "call the function without mindspore.jit, in PYNATIVE_MODE")


@lru_cache(KEPT_POLICIES)
def _copied(function: types.FunctionType, policy: Policy, rules: object) -> types.FunctionType:
    """Return a function of its own for a policy and the rules of layers.

    MindSpore keeps what it has parsed by the function's identity.
    """
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__, copy.__kwdefaults__ = function.__module__, function.__kwdefaults__
    setattr(copy, _ATTRIBUTE, strategy(policy))
    return copy


def _cell_runs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Cell.compile_and_run`, so that each policy has a graph of its own."""

    def compile_and_run(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        _warn_if_traced()
        with _cell_under_policy(self, self.construct) as suffix:
            if not suffix:
                return original(self, *args, **kwargs)
            phase = self.phase
            self.phase = phase + suffix
            try:
                return original(self, *args, **kwargs)
            finally:
                self.phase = phase

    return compile_and_run


def _cell_compiles(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_CellGraphExecutor.compile`, which exports call without running anything."""

    def compile(self: Any, obj: nn.Cell, *args: Any, phase: str = "predict", **kwargs: Any) -> Any:
        if graph.compiled:
            return original(self, obj, *args, phase=phase, **kwargs)
        with _cell_under_policy(obj, obj.construct) as suffix:
            return original(self, obj, *args, phase=phase + suffix, **kwargs)

    return compile


def _trace_begins(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what begins to capture a graph from a trace, so that it raises in a region: no strategy reaches such a graph."""

    @functools.wraps(original)
    def begin(*args: Any, **kwargs: Any) -> Any:
        if _in_force() is not None:
            raise NotExpressible(
                "MindSpore has no strategy for graphs that mindspore.jit captures from a trace; use "
                'capture_mode="ast", or call the function without mindspore.jit'
            )
        return original(*args, **kwargs)

    return begin


def check_not_traced() -> None:
    """Check that MindSpore is not capturing a graph from a trace, which would miss the casts of a region.

    Raises:
        NotExpressible: if it is.
    """
    if jit_context() is not None:
        raise NotExpressible(
            'a region cannot be opened inside a function that mindspore.jit captures with capture_mode="trace" (nor after such '
            'a function raised: MindSpore goes on with its trace); open it around the call of one with capture_mode="ast"'
        )


@cache
def hooks() -> tuple[CodePatch, ...]:
    """Return the functions of MindSpore's compilers that must know about open regions."""
    return (CodePatch(jit_trace._jit_trace_begin, _trace_begins),)


@cache
def install() -> None:
    """Have each graph compiled under its policy, from now on.

    Not only while a region is open: what is decorated with one may be compiled, or exported, with none around it, and its
    wrapper, which would open the region, is never run.
    """
    call = api._JitExecutor.__call__
    for patch in (
        CodePatch(getattr(call, "__wrapped__", call), _executor_runs),
        CodePatch(api._JitExecutor.compile, _executor_compiles),
        CodePatch(nn.Cell.compile_and_run, _cell_runs),
        CodePatch(api._CellGraphExecutor.compile, _cell_compiles),
        *parser_hooks(),
        *resolving_hooks(),
        *capture_hooks(),
    ):
        patch.apply()


def needed() -> list[tuple[Any, str]]:
    """Return what must be there, as objects and the names of attributes."""
    strategies = [(amp, "create_amp_strategy"), (amp, "AmpLevel")]
    captured = [*capture_needed(), (jit_trace, "_jit_trace_begin")]
    compiled = [(api._JitExecutor, "compile"), (nn.Cell, "compile_and_run"), (api._CellGraphExecutor, "compile")]
    return [*compiled, *strategies, *captured, *parser_needed(), *resolving_needed()]
