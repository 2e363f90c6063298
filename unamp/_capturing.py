"""What compilers that trace Python code have to be told about ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["once_per_trace"]

F = TypeVar("F", bound=Callable[..., Any])


def once_per_trace(function: F) -> F:
    """Mark a function that a tracing compiler calls while it traces, with the result as a constant of the graph.

    The mark is an attribute, so that nothing has to be imported: it is what `torch.compiler.assume_constant_result` sets. It
    is here and not in an adapter because the adapter is loaded by what such a function does.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
