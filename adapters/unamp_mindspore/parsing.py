"""Decorators of unamp's in the source that MindSpore's compiler reads.

It reads the source behind every decorator, so one deep inside a graph would be lost in silence. The compiler makes a parser for
each function that it gets to, and there the decorator is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mindspore

from unamp._compiler_marks import NOT_COMPILED
from unamp.adapter import major_minor
from unamp.adapter.layers import RulesInForce
from unamp.adapter.replacing import CodePatch
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy
from unamp_mindspore.decorators import cast_inputs_of, policy_of
from unamp_mindspore.state import thread

if major_minor(mindspore.__version__) < (2, 9):
    from mindspore._extends.parse import parser
else:
    from mindspore.graph._parse import parser

__all__ = ["PART", "GraphUnder", "cell_checks", "graph", "layer_rules", "parser", "parser_hooks", "parser_needed"]


#: The attribute of functions, modules and namespaces in what an operation is made of, where no rule holds.
PART = "_unamp_part"

#: The rules that layers have: graphs follow them.
layer_rules = RulesInForce()

#: What else is asked of the cell whose method is read.
cell_checks: list[Callable[[Any], None]] = []


class _Graph(threading.local):
    """The graph that this thread compiles or runs.

    Attributes:
        compiled: whether there is one.
        policy: its policy; None where it has none that changes anything.
    """

    compiled: bool = False
    policy: Policy | None = None


graph = _Graph()


class GraphUnder:
    """Have this thread compile, or run, a graph under a policy. No other is in force: the compiler runs operations, too.

    Entered, it gives what the name under which MindSpore keeps the graph ends with.
    """

    # Every call of a compiled function makes one, with a policy or without.
    __slots__ = ("_before", "_policy")

    def __init__(self, policy: Policy | None) -> None:
        self._policy = policy

    def __enter__(self) -> str:
        self._before = graph.compiled, graph.policy, thread.plan
        graph.compiled, graph.policy, thread.plan = True, self._policy, None
        return "" if self._policy is None else _suffix(self._policy, layer_rules.key)

    def __exit__(self, *error: object) -> None:
        graph.compiled, graph.policy, thread.plan = self._before


@lru_cache(KEPT_POLICIES)
def _suffix(policy: Policy, rules: frozenset[object] | None) -> str:
    numbered = "" if rules is None else f" {_numbers.setdefault(rules, len(_numbers))}"
    return f".unamp {policy!r}{numbered}"


_numbers: dict[frozenset[object], int] = {}  # of sets of rules for layers


def _parsed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Parser.__init__`, so that what would be lost in a graph raises, and a part's names are found as parts."""

    def __init__(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
        _check(fn)
        original(self, fn, *args, **kwargs)
        if getattr(fn, PART, False):
            vars(self.global_namespace)[PART] = vars(self.closure_namespace)[PART] = True

    return __init__


def _check(function: Any) -> None:
    reason = getattr(function, NOT_COMPILED, None)
    if reason is not None:
        raise NotExpressible(reason)
    for check in cell_checks:
        check(getattr(function, "__self__", None))
    name = getattr(function, "__qualname__", "a function")
    decorated = policy_of(function, otherwise=graph.policy)
    if decorated != graph.policy:
        raise NotExpressible(
            f"{name} is decorated with a region and part of a graph that MindSpore compiles under {_words(graph.policy)}: a "
            "graph has one policy, and the compiler does not run decorators; decorate what is compiled as a whole (the "
            "function that mindspore.jit is given, the outermost cell), or open the region around its call, or call it in "
            "PYNATIVE_MODE without mindspore.jit"
        )
    if decorated is not None and cast_inputs_of(function) is not None:
        raise NotExpressible(
            f"{name} is decorated with custom_fwd(cast_inputs=...) and part of a graph that MindSpore compiles: the compiler "
            "does not run decorators; cast in its body, or call it in PYNATIVE_MODE without mindspore.jit"
        )


def _words(policy: Policy | None) -> str:
    return "no policy" if policy is None else "another policy"


def parser_hooks() -> tuple[CodePatch, ...]:
    """Return the functions of MindSpore's parser that must know about decorators."""
    return (CodePatch(parser.Parser.__init__, _parsed),)


def parser_needed() -> list[tuple[Any, str]]:
    """Return what must be there, as objects and the names of attributes."""
    return [(parser, "Parser")]
