"""Classes derived under their base's name, and a second object for a network.

Most adapters wrap a network in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from unamp._function_types import Function

T = TypeVar("T")


def derived_class(own: type, body: Mapping[str, object], bases: tuple[type, ...] = ()) -> Any:
    """Return a class derived from another under that one's name.

    The name is what messages, saved files and `repr` show.

    Args:
        own: the class.
        body: what the derived class has of its own.
        bases: classes that come before it.
    """
    named = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    metaclass: Any = type(own)
    return metaclass(own.__name__, (*bases, own), {**named, **body})


def with_method(
    network: T,
    method: str,
    instead: Function,
    again: Callable[[T], object],
    begin: Callable[[T], None] = lambda made: None,
) -> T:
    """Return an object that shares `network.__dict__`, of its own class, with `method` overridden.

    Args:
        network: an object whose whole state is in its ``__dict__``.
        method: the method's name.
        instead: the function to call in its place; it takes the original, bound to the new object,
            before the arguments.
        again: makes such an object of another network; copies and pickles are made with it.
        begin: prepares a new object of the class before it gets its state.
    """
    kind = getattr(type(network), "_unamp_plain", type(network))
    original = getattr(kind, method)

    def replaced(self: object, *args: Any, **kwargs: Any) -> Any:
        return instead(original.__get__(self), *args, **kwargs)

    def reduced(self: T, protocol: object) -> tuple[object, ...]:
        return again, (sharing(kind, self),)

    def sharing(of: type[T], state: T) -> T:
        made = of.__new__(of)
        begin(made)
        object.__setattr__(made, "__dict__", vars(state))
        return made

    body = {method: replaced, "__reduce_ex__": reduced, "_unamp_plain": kind}
    return sharing(derived_class(kind, body), network)
