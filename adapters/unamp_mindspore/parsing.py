"""Patches of MindSpore's parser, which reads the functions of a graph.

In a bound function, the objects that its names stand for are bound, and its operators have rules.

The parser reads the source behind every decorator. A decorator of unamp's is normally found when
the function's name is resolved. If one is found only here, its effect would be lost, so it raises.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mindspore import nn
from mindspore.ops.composite.multitype_ops import add_impl

from unamp._compiler_marks import NOT_COMPILED
from unamp._function_types import Function
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp.adapter.state import suspended
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy
from unamp.regions import Region
from unamp_mindspore.binding import Binding, binding, kept_alive, layer_rules
from unamp_mindspore.decorators import inside, inside_backward
from unamp_mindspore.graph_calls import BOUND, CASTS_NOTHING
from unamp_mindspore.graph_operators import gradients_added
from unamp_mindspore.moved import parser
from unamp_mindspore.rewriting import rewritten, with_cast_gradients
from unamp_mindspore.state import thread
from unamp_mindspore.strategies import STRATEGY

if TYPE_CHECKING:
    import ast


#: The attribute of a parser that holds the object of which its function is a method.
_OWNER = "_unamp_owner"

#: The package of the functions by which `vmap` computes an operation on a batch. They must cast
#: nothing: the replacement of the operation has cast its inputs before.
_BATCHING = "mindspore.ops._vmap."

#: The method of a cell that computes its gradients.
_BACKWARD = "bprop"


class _Graph(threading.local):
    """The graph that this thread compiles or runs.

    Attributes:
        compiled: whether there is one.
        bound: whether the compiler has read code that is bound to a policy.
        backward: the cell whose `bprop` the compiler is reading, and the binding of that; None
            while it reads other code.
    """

    compiled: bool = False
    bound: bool = False
    backward: tuple[nn.Cell, Binding] | None = None


graph = _Graph()


@contextmanager
def graph_under(policy: Policy | None) -> Iterator[str]:
    """Have the thread compile, or run, a graph under a policy while the context is open.

    No policy is in force for calls meanwhile: the compiler itself runs operations. Yields the
    suffix of the name under which MindSpore keeps the graph.
    """
    before, graph.compiled = graph.compiled, True
    try:
        with suspended(thread):
            plain = policy is None and not layer_rules.used
            yield "" if plain else _suffix(policy, layer_rules.key)
    finally:
        graph.compiled = before
        if not before:
            graph.bound, graph.backward = False, None
            kept_alive.clear()


@lru_cache(KEPT_POLICIES)
def _suffix(policy: Policy | None, rules: frozenset[object] | None) -> str:
    numbered = "" if rules is None else f" {_numbers.setdefault(rules, len(_numbers))}"
    return f".unamp {policy!r}{numbered}"


_numbers: dict[frozenset[object], int] = {}  # of sets of rules for layers


@as_replacement
def _parsed(original: Function, /, self: Any, fn: Function, *args: Any, **kwargs: Any) -> None:
    """Wrap `Parser.__init__`, so that names in a bound function are bound, too.

    It raises where a decorator would be lost in a graph.
    """
    if fn is add_impl._add_addn:
        fn = gradients_added
    if graph.bound and _is_batching_rule(fn):
        vars(fn)[STRATEGY] = CASTS_NOTHING
    owner = getattr(fn, "__self__", None)
    bound = getattr(fn, BOUND, None) or getattr(owner, BOUND, None)
    graph.backward = None
    if bound is not None and isinstance(owner, nn.Cell) and fn.__name__ == _BACKWARD:
        bound = binding(inside_backward(fn, owner.construct, bound.policy))
        graph.backward = owner, bound
    _check(fn, bound)
    original(self, fn, *args, **kwargs)
    if bound is not None:
        graph.bound = True
        for each in (self, self.global_namespace, self.closure_namespace):
            vars(each)[BOUND] = bound
        vars(self)[_OWNER] = owner


@as_replacement
def _read(original: Function, self: Any) -> tuple[object, ast.Module | None]:
    """Wrap `Parser.parse`, so that operators and methods have rules, too."""
    tokens, tree = original(self)
    bound = vars(self).get(BOUND)
    if bound is None or not bound.names or tree is None:
        return tokens, tree
    self.global_namespace.dicts = (*self.global_namespace.dicts, bound.names)
    found = rewritten(tree, self.fn, vars(self)[_OWNER], bound.names)
    return tokens, found if graph.backward is None else with_cast_gradients(found)


def _is_batching_rule(function: object) -> bool:
    """Return whether a function is `vmap`'s for one operation of the graph; see `_BATCHING`."""
    return (
        isinstance(function, types.FunctionType)
        and "<locals>" in function.__qualname__
        and f"{function.__module__}.".startswith(_BATCHING)
    )


def _check(function: Function, bound: Binding | None) -> None:
    reason = getattr(function, NOT_COMPILED, None)
    if reason is not None:
        raise NotExpressible(reason)
    check_no_region(function)
    policy = None if bound is None else bound.policy
    decorated, casts = inside(function, policy)
    if decorated == policy or BOUND in vars(getattr(function, "__func__", function)):
        return
    name = getattr(function, "__qualname__", "a function")
    if casts:
        raise NotExpressible(
            f"{name} is decorated with custom_fwd(cast_inputs=...), and what MindSpore compiles as "
            "a whole: the compiler does not run decorators; cast in its body, or call it in "
            "PYNATIVE_MODE without mindspore.jit"
        )
    raise NotExpressible(
        f"{name} is decorated with a region, and part of a graph that MindSpore compiles, at a "
        "place that unamp does not see: the compiler does not run decorators; call it by its name, "
        "or in PYNATIVE_MODE without mindspore.jit"
    )


def check_no_region(value: object) -> None:
    """Check that an object named in a compiled function is no region, nor makes one.

    Raises:
        NotExpressible: if it does.
    """
    makes = isinstance(value, types.FunctionType) or (
        isinstance(value, type) and hasattr(value, "__enter__")
    )
    if isinstance(value, Region) or (
        makes and f"{value.__module__}.".startswith("unamp.") and BOUND not in vars(value)
    ):
        raise NotExpressible(
            f"{getattr(value, '__name__', value)!s} is used inside a function that mindspore.jit "
            "or GRAPH_MODE compiles, and MindSpore's compiler knows no regions there: write the "
            "part that it is about as a function, decorate that "
            '(@unamp.autocast(dtype="bfloat16")) and call it, or open the region around the call '
            "of the compiled function"
        )


@as_replacement
def _with(original: Function, self: Any, var: str) -> object:
    """Wrap the parser's check of the name in a `with`, which takes any object for a class."""
    if var in self.global_namespace:
        check_no_region(self.global_namespace[var])
    return original(self, var)


#: The patches of MindSpore's parser.
PARSER_HOOKS = (
    CodePatch(parser.Parser.__init__, _parsed),
    CodePatch(parser.Parser.parse, _read),
    CodePatch(parser.Parser.check_is_base_ctx, _with),
)
