"""Names in the source that MindSpore's compiler reads, and what they stand for in a graph.

A strategy knows primitives. A function of MindSpore's that is an operation and is made of several primitives, such as a loss,
follows its rule by a function in its place, which casts what it is given. All that such an operation is made of follows no
rule: whatever is found from there is a copy of its own, since the compiler keeps what it has read by identity.

What the compiler does not read but has Python run, whenever the graph runs, is refused in a graph with a policy: no strategy
and no region reaches it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from mindspore._c_expression import amp as strategies
from mindspore.ops.functional import mixed_precision_cast
from mindspore.ops.primitive import Primitive

from unamp.adapter.replacing import CodePatch
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore.facts import facts
from unamp_mindspore.graph_scaling import CASTS_NOTHING, in_graphs
from unamp_mindspore.listing import functions
from unamp_mindspore.parsing import PART, graph, parser
from unamp_mindspore.spellings import spelled
from unamp_mindspore.state import DTYPES, FLOAT32

__all__ = ["resolving_hooks", "resolving_needed"]

#: Callables without source, which the compiler has Python call.
_OPAQUE = (functools.partial, functools._lru_cache_wrapper)


def _resolved(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `resolve_symbol`, which the compiler asks what a name stands for."""

    def resolve_symbol(namespace: Any, symbol: str) -> Any:
        # What it finds may be anything, with any __eq__ and __hash__.
        found = original(namespace, symbol)
        if vars(namespace).get(PART):
            return _part(found)
        if graph.policy is not None:
            found = _under(graph.policy, found, symbol)
        return in_graphs(found)

    return resolve_symbol


def _under(policy: Policy, found: Any, symbol: str) -> Any:
    """Return what a name stands for in a graph under a policy.

    Raises:
        BannedOperation: for an operation that the policy bans.
        NotExpressible: for what the policy would not reach.
    """
    if isinstance(found, _OPAQUE):
        raise NotExpressible(
            f"{symbol} is a {type(found).__name__}, which MindSpore's compiler does not read: Python runs it when the graph "
            "runs, out of reach of the policy; write a function that does the same (def), or call it in PYNATIVE_MODE without "
            "mindspore.jit"
        )
    if isinstance(found, types.FunctionType):
        op = functions().get(found)
    else:
        op = spelled().get(found.name) if isinstance(found, Primitive) else None
    if op is None or (op in facts().transparent and op not in policy.allow and op not in policy.deny):
        return found
    rule = policy.rules[op]
    if rule is Rule.BANNED:
        raise BannedOperation(f"{op} is banned by the policy in force. {policy.reason(op).advice}".rstrip())
    if not isinstance(found, types.FunctionType) or rule not in (Rule.LOW, Rule.FP32):
        return found
    if rule is Rule.LOW and vocabulary()[op].group == "norm":  # parameters and statistics stay as they are
        return found
    return _stand_in(found, DTYPES[policy.dtype] if rule is Rule.LOW else FLOAT32)


@cache  # the compiler keeps what it has read by identity
def _stand_in(function: types.FunctionType, dtype: Any) -> types.FunctionType:
    """Return a function that casts what it is given and calls another one, inside of which no rule holds."""
    operation = _part(function)

    def unamp_operation(*args, **kwargs):  # type: ignore[no-untyped-def]
        return operation(*mixed_precision_cast(dtype, args), **mixed_precision_cast(dtype, kwargs))

    vars(unamp_operation).update({PART: True, "amp_strategy": CASTS_NOTHING})
    return cast(types.FunctionType, unamp_operation)


def _part(found: Any) -> Any:
    """Return the same for code that an operation is made of."""
    if isinstance(found, types.FunctionType) and PART not in vars(found) and _is_own(found.__module__):
        return _part_function(found)
    if type(found) is types.ModuleType and _is_own(found.__name__):
        return _part_module(found)
    return found


def _is_own(module: str | None) -> bool:
    return (module or "").startswith("mindspore.")


@cache
def _part_function(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    vars(copy).update({name: value for name, value in vars(function).items() if name != "amp_strategy"})
    setattr(copy, PART, True)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@cache
def _part_module(module: types.ModuleType) -> types.ModuleType:
    copy = types.ModuleType(module.__name__)
    vars(copy).update({**vars(module), PART: True})
    return copy


def _module_namespace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `get_module_namespace`, so that names in a module are found as the module was."""

    def get_module_namespace(obj: Any) -> Any:
        made = original(obj)
        if made is not None and getattr(obj, PART, False):
            vars(made)[PART] = True
        return made

    return get_module_namespace


def resolving_hooks() -> tuple[CodePatch, ...]:
    """Return the functions of MindSpore's parser that find what a name stands for."""
    return CodePatch(parser.resolve_symbol, _resolved), CodePatch(parser.get_module_namespace, _module_namespace)


def resolving_needed() -> list[tuple[Any, str]]:
    """Return what must be there, as objects and the names of attributes."""
    return [(parser, "resolve_symbol"), (parser, "get_module_namespace"), (strategies.AmpLevel, "AmpO0")]
