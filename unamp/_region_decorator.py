"""Running functions of every kind inside a context manager, one step at a time.

A generator or coroutine hands control back at every `yield` and `await`. The context must not stay
open then: the code that runs in between belongs to somebody else. So the context is entered and
left for each step, and regions that the body has open while it waits are closed meanwhile.

A compiler that reads the source behind a decorator never runs the decorator, which leaves a mark
for that compiler's adapter.
"""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from unamp._compiler_marks import converted_by_adapter
from unamp._function_types import F, Function
from unamp._open_regions import close_down_to, open_regions

Context = AbstractContextManager[object]

#: The types of the values that a generator yields, and that it is sent.
Y = TypeVar("Y")
S = TypeVar("S")

#: The attribute of a decorated function that holds its decorator.
MARK = "__unamp_region__"


def decorate(
    context: Callable[[], Context],
    function: F,
    mark: object,
    check: Callable[[object, object], None],
) -> F:
    """Return `function` with each step of its body inside a context manager.

    Args:
        context: returns the context manager; called for each step.
        function: the function; a `staticmethod` or `classmethod` stays one.
        mark: the value of the result's attribute `MARK`; its method ``regions`` returns the regions
            that `context` opens, the innermost last.
        check: called with `mark` and the arguments of every call, before anything is entered.
    """
    import inspect  # slow to import, and a region used as a context manager does not need it

    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(context, function.__func__, mark, check))
    kind = runs_later(function)
    wrapper: Function
    if kind == "asynchronous generator":

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[object, object]:
            check(mark, (args, kwargs))
            inner, own = function(*args, **kwargs), _OwnRegions()
            step, value = inner.asend, None
            while True:
                try:
                    item = await _awaited(context, step(value), own)
                except StopAsyncIteration:
                    return
                try:
                    step, value = inner.asend, (yield item)
                except GeneratorExit:
                    await _awaited(context, inner.aclose(), own)
                    raise
                except BaseException as error:
                    step, value = inner.athrow, error

    elif kind == "coroutine":

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            check(mark, (args, kwargs))
            return await _awaited(context, function(*args, **kwargs), _OwnRegions())

    elif kind == "generator":

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Generator[object, object, object]:
            check(mark, (args, kwargs))
            return (yield from in_steps(context, function(*args, **kwargs)))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            check(mark, (args, kwargs))
            with context():
                return function(*args, **kwargs)

    setattr(wrapper, MARK, mark)
    converted_by_adapter(wrapper)
    with suppress(TypeError, ValueError):  # some builtins have none
        wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def runs_later(function: object) -> str:
    """Return the kind of object that runs a function's body later; empty where a call runs it.

    Args:
        function: a function, or an object that can be called.
    """
    import inspect

    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        if inspect.isasyncgenfunction(called):
            return "asynchronous generator"
        if inspect.iscoroutinefunction(called):
            return "coroutine"
        if inspect.isgeneratorfunction(called):
            return "generator"
    return ""


class _OwnRegions:
    """The regions that a generator's or coroutine's body opens; they are closed while it waits."""

    def __init__(self) -> None:
        self._interrupted: tuple[Context, ...] = ()
        self._depth = 0

    def __enter__(self) -> None:
        self._depth = open_regions()
        try:
            for region in self._interrupted:
                region.__enter__()
        except BaseException:
            close_down_to(self._depth)
            raise

    def __exit__(self, *error: object) -> None:
        self._interrupted = close_down_to(self._depth)


def in_steps(
    context: Callable[[], Context], inner: Generator[Y, S, object], own: _OwnRegions | None = None
) -> Generator[Y, S, object]:
    """Return a generator that runs each step of another one inside a new `context()`.

    `own` are the regions that the body has opened in earlier steps.
    """
    own = own or _OwnRegions()
    value: Any = None
    error: BaseException | None = None
    while True:
        with context(), own:
            try:
                item = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
        try:
            value, error = (yield item), None
        except GeneratorExit:
            with context(), own:
                inner.close()
            raise
        except BaseException as thrown:
            error = thrown


@types.coroutine
def _awaited(
    context: Callable[[], Context], awaitable: Awaitable[object], own: _OwnRegions
) -> Generator[object, Any, object]:
    return (yield from in_steps(context, awaitable.__await__(), own))
