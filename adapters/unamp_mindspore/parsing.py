"""What MindSpore's compiler reads: the source behind every decorator.

A decorator of unamp's deep inside a graph would be lost in silence. The compiler makes a parser for each function that it gets
to, and there it is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore

from unamp.adapter import major_minor
from unamp.adapter.layers import RulesInForce
from unamp.adapter.replacing import CodePatch
from unamp.adapter.state import suspended
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp_mindspore.decorators import cast_inputs_of, policy_of
from unamp_mindspore.state import thread

if major_minor(mindspore.__version__) < (2, 9):
    from mindspore._extends.parse import parser
else:
    from mindspore.graph._parse import parser

__all__ = ["cell_checks", "graph", "graph_under", "layer_rules", "parser", "parser_hooks", "parser_needed"]


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


@contextmanager
def graph_under(policy: Policy | None) -> Iterator[None]:
    """Have this thread compile, or run, a graph under a policy. No other is in force: the compiler runs operations, too."""
    before = graph.compiled, graph.policy
    graph.compiled, graph.policy = True, policy
    try:
        with suspended(thread):
            yield
    finally:
        graph.compiled, graph.policy = before


def _parsed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Parser.__init__`, so that a decorator whose policy is not the graph's raises."""

    def __init__(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
        _check(fn)
        original(self, fn, *args, **kwargs)

    return __init__


def _check(function: Any) -> None:
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
