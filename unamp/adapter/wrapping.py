"""Classes derived under their base's name, a second object for a network, and a base's classes.

Most adapters wrap a network in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import FunctionType
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


def with_derived(base: type) -> tuple[type, ...]:
    """Return a class and all that are derived from it by now, each once."""
    kinds = [base]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    return tuple(dict.fromkeys(kinds))


def own_methods(
    base: type, names: Iterable[str], without: Container[str] = ()
) -> Iterator[FunctionType]:
    """Yield methods of a framework's own classes: a class and those derived from it.

    A user's classes are left out, which are in another package than `base`.

    Args:
        base: the class.
        names: the names of the methods, of which each class yields those that it defines itself.
        without: the names of classes to leave out.
    """
    package = base.__module__.partition(".")[0] + "."
    for kind in with_derived(base):
        if kind.__module__.startswith(package) and kind.__name__ not in without:
            yield from (vars(kind)[name] for name in names if name in vars(kind))


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
