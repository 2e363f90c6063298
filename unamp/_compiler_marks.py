"""Marks on our functions for compilers that trace or convert Python code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from unamp._function_types import F
from unamp._on_import import when_imported

#: Functions that load the adapters, called when a compiler asks about a mark: it may ask before
#: anything else of unamp has run. The registry adds its own; an adapter tells a compiler the rest.
WHEN_ASKED: list[Callable[[], object]] = []

#: The attribute of a function that says why no graph can be compiled from its source.
NOT_COMPILED = "__unamp_not_compiled__"

#: The attribute in which Paddle keeps a function's options for its compilers.
_OPTIONS = "___jit_transform_options___"

#: The framework whose compiler reads the source behind a decorator.
_READS_SOURCE = "mindspore"


def once_per_trace(function: F) -> F:
    """Mark a function whose result a tracing compiler keeps in the graph as a constant.

    The compiler calls the function while it traces. The mark is the attribute that
    `torch.compiler.assume_constant_result` sets, so that nothing has to be imported. An adapter
    cannot set it: a call of the marked function is what loads the adapter.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class _RunAsItIs:
    """The options of `paddle.jit.marker` for an unconverted function; the names are Paddle's."""

    def need_transform(self, mode: object) -> bool:
        _load()
        return getattr(mode, "name", "") != "AST"

    def need_capture_control_flow(self) -> bool:
        return False


_AS_IT_IS = _RunAsItIs()


class _AskTheAdapter(_RunAsItIs):
    """The options of a function that an adapter converts: a question about them loads it."""

    def need_transform(self, mode: object) -> bool:
        super().need_transform(mode)
        return True


_ASK_THE_ADAPTER = _AskTheAdapter()


def converted_by_adapter(function: object) -> None:
    """Mark a function that an adapter converts: a compiler that asks about it loads the adapter."""
    if not hasattr(function, _OPTIONS):
        setattr(function, _OPTIONS, _ASK_THE_ADAPTER)


def load_before_source_is_read() -> None:
    """Load the adapter of a framework whose compiler reads source, now or when it is imported.

    Before the adapter is loaded, this compiler asks about no mark, and would compile
    `with unamp.autocast():` as any other code.
    """
    if _READS_SOURCE in sys.modules:
        _load()
    else:
        when_imported(_READS_SOURCE, _load)


def _load() -> None:
    for load in WHEN_ASKED:
        load()


def not_converted(function: F) -> F:
    """Mark a function that compilers call without converting its Python code.

    The marks are attributes, so that nothing has to be imported: one that
    `paddle.jit.marker.unified` sets, and one by which TensorFlow's AutoGraph knows a function
    that it leaves alone.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    setattr(function, _OPTIONS, _AS_IT_IS)
    return function


def not_compiled(reason: str) -> Callable[[F], F]:
    """Mark a function that a compiler cannot read, for adapters whose compilers read source.

    Args:
        reason: what is wrong and what to do, for the error.
    """

    def mark(function: F) -> F:
        setattr(function, NOT_COMPILED, reason)
        return function

    return mark
