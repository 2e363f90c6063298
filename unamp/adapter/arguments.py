"""Tensors in arguments and results: in lists, tuples, dictionaries and frameworks' containers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from unamp.adapter.framework_types import Cast, Dtype, Tensor
from unamp.dtypes import ELIGIBLE

if TYPE_CHECKING:
    from unamp.adapter.contract import Adapter

T = TypeVar("T")

#: The leaves of a framework's own container, and the function that makes one from other leaves.
Opened = tuple[Sequence[object], Callable[[Sequence[object]], object]]


def mapped(
    value: Any,
    is_tensor: Callable[[object], bool],
    change: Callable[[Tensor], object],
    opened: Callable[[object], Opened | None] | None = None,
) -> Any:
    """Return a value with its tensors changed: a tensor, or tuples, lists and dictionaries of them.

    Args:
        value: the value.
        is_tensor: tells which values are tensors.
        change: returns the replacement of a tensor.
        opened: opens further containers, as `unamp.adapter.registered` says; None: there are no
            others.
    """
    if is_tensor(value):
        return change(value)
    if isinstance(value, dict):
        changed = {key: mapped(item, is_tensor, change, opened) for key, item in value.items()}
        if all(map(is_, value.values(), changed.values())):
            return value  # the same object: the function that gets it may change it
        if type(value) is dict:
            return changed
        made = copy.copy(value)  # its class may take more than items: `defaultdict`
        try:
            for key, item in changed.items():
                made[key] = item
        except TypeError:  # no item can be set: a dictionary in a graph of torch.fx
            return type(value)(changed)
        return made
    if isinstance(value, (tuple, list)):
        items = [mapped(item, is_tensor, change, opened) for item in value]
        if all(map(is_, value, items)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if (
        opened is None
        or value is None
        or isinstance(value, (bool, int, float, str))
        or (found := opened(value)) is None
    ):
        return value
    before, made_of = found
    after = [change(leaf) if is_tensor(leaf) else leaf for leaf in before]
    # Without a change it stays the same object: a new one may cost a check, or lose state of the
    # old one.
    return value if all(map(is_, before, after)) else made_of(after)


def within(value: object, kinds: type[T] | tuple[type[T], ...]) -> Iterator[T]:
    """Give the objects of some classes in a value, also inside tuples, lists and dictionaries."""
    return (each for each in leaves(value) if isinstance(each, kinds))


def leaves(value: object) -> Iterator[Any]:
    """Return the leaves of lists, tuples and dictionaries, at any depth."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def cast_eligible(
    adapter: Adapter,
    value: object,
    dtype: str,
    opened: Callable[[object], Opened | None] | None = None,
) -> Any:
    """Return a value with its eligible tensors of a framework in a dtype.

    Gradients flow back through the casts. Further containers are opened as `mapped` says.
    """

    def cast(tensor: Tensor) -> Tensor:
        return adapter.cast(tensor, dtype) if adapter.dtype_of(tensor) in ELIGIBLE else tensor

    return mapped(value, adapter.is_tensor, cast, opened)


class Nesting(NamedTuple):
    """The functions that look for tensors in arguments; see `nesting`.

    Attributes:
        tensors: the tensors in an argument or a result, in any nesting.
        floats: the dtypes of the eligible tensors in an argument or a result.
        convert: an argument with its tensors converted, given the function that converts one to a
            dtype, and the dtype.
    """

    tensors: Callable[[object], Iterator[Tensor]]
    floats: Callable[[object], list[Dtype]]
    convert: Callable[[Cast, Dtype, object], Any]


def nesting(
    tensor: type | None,
    parameter: type | None,
    others: tuple[type, ...],
    eligible: tuple[Dtype, Dtype, Dtype],
    dtype_of: Callable[[Tensor], Dtype],
) -> Nesting:
    """Return the functions that look for tensors in arguments, made for one framework.

    Every call in a region runs them: they use no generators, ask for the commonest kinds first, and
    compare by `is` alone, since `==` of a framework's dtypes may take longer than all the rest.

    Args:
        tensor: the class of nearly all tensors; None where their `dtype` is not one of `eligible`.
        parameter: the class of parameters, for which the same holds; where parameters need no class
            of their own, the same as `tensor`.
        others: further classes of tensors.
        eligible: the dtypes that rules cast, each the one object that the framework has for it.
        dtype_of: returns the dtype of a tensor of any other class, as one of `eligible`.
    """
    kinds = tuple(kind for kind in (tensor, parameter, *others) if kind is not None)
    first, second, third = eligible

    def floats(value: Any) -> list[Dtype]:
        found: list[Dtype] = []
        collect(value if type(value) in (list, tuple) else (value,), found)
        return found

    def collect(values: Iterable[Any], found: list[Dtype]) -> None:
        for value in values:
            kind = type(value)
            if kind is tensor or kind is parameter:
                dtype = value.dtype
            elif kind is int or kind is bool or value is None or kind is float or kind is str:
                continue
            elif kind is list or kind is tuple:
                collect(value, found)
                continue
            elif kind is dict:
                collect(value.values(), found)
                continue
            elif isinstance(value, kinds):
                dtype = dtype_of(value)
            else:
                continue
            if dtype is first or dtype is second or dtype is third:
                found.append(dtype)

    def convert(to: Cast, dtype: Dtype, value: Any) -> object:
        kind = type(value)
        if kind is tensor or kind is parameter:
            return to(value, dtype)
        if kind is int or kind is bool or value is None:
            return value
        if isinstance(value, kinds):
            return to(value, dtype)
        if kind is list or kind is tuple:
            return kind([convert(to, dtype, item) for item in value])
        return value

    return Nesting(partial(within, kinds=kinds), floats, convert)
