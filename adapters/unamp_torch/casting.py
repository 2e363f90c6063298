"""Casts of tensors, one by one and in argument lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from unamp._function_types import Keywords
from unamp.adapter.arguments import mapped
from unamp_torch.state import CPU, DTYPES, META, thread

_FLOAT32 = torch.float32

#: The dtypes of the tensors that rules cast.
ELIGIBLE = frozenset(DTYPES.values())

#: The names of tensor arguments that are integers or booleans in every operator.
_NEVER_FLOATING = frozenset(
    {
        "batch_sizes",
        "condition",
        "index",
        "indices",
        "input_lengths",
        "mask",
        "offsets",
        "target_lengths",
    }
)

#: The names of a norm's parameters in PyTorch's schemas; ``g`` is the magnitude of `_weight_norm`.
_PARAMETERS = frozenset({"bias", "g", "weight"})

#: The names of a norm's running statistics there. The argument after the last one says whether a
#: call updates them.
_STATISTICS = frozenset({"running_mean", "running_var"})

_is_cache_enabled = torch.is_autocast_cache_enabled
_functorch_level = torch._C._functorch.maybe_current_level


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in `dtype` where its own is eligible, else as it is."""
    current = tensor.dtype
    return tensor if current is dtype or current not in ELIGIBLE else tensor.to(dtype)


def cast_weight(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast as `cast` does; a float32 parameter is cast once and kept for the outermost region.

    Not kept are casts made under `no_grad` (a later use under grad would lose its gradient), inside
    a `torch.func` transform (they belong to its level), while a graph is captured (PyTorch switches
    its own cache off then, too), and casts of anything but a plain parameter.
    """
    if (
        not tensor.requires_grad
        or not tensor.is_leaf
        or tensor.dtype is not _FLOAT32
        or (kept := thread.weights) is None
        or type(tensor) not in (torch.nn.Parameter, torch.Tensor)
        or not torch.is_grad_enabled()
        or not _is_cache_enabled()
        or _functorch_level() is not None
    ):
        return cast(tensor, dtype)
    version = tensor._version
    entry = kept.get(id(tensor))
    # Else it was written to since (another version), or cast in a region of the other low dtype.
    if entry is not None and entry[1] == version and entry[2].dtype is dtype:
        return entry[2]
    low = tensor.to(dtype)
    kept[id(tensor)] = (tensor, version, low)
    return low


class Eligible:
    """The arguments of an operator that a rule casts, by position and keyword: tensors and lists.

    Args:
        schema: the operator's schema.
        activation_only: whether only the first tensor is cast (norms). Parameters and statistics
            stay as they are, but a norm that computes in float32 takes none that are low.

    Attributes:
        positions: the arguments that may be given by position.
        keywords: the arguments that are given by keyword.
        parameters: the positions of parameters, which are cast to float32 only.
        single: whether the only argument is one tensor, with which nothing can disagree.
        statistics: the positions of statistics, which are cast to float32 only, and updated by a
            call in training; see `write_back`.
    """

    __slots__ = ("keywords", "parameters", "positions", "single", "statistics")

    def __init__(self, schema: torch.FunctionSchema, activation_only: bool) -> None:
        tensors = [
            (i, a)
            for i, a in enumerate(schema.arguments)
            if "Tensor" in str(a.type) and a.name not in _NEVER_FLOATING
        ]
        self.parameters: tuple[int, ...] = ()
        self.statistics: tuple[int, ...] = ()
        if activation_only:
            self.statistics = tuple(i for i, a in tensors if a.name in _STATISTICS)
            self.parameters = tuple(i for i, a in tensors if a.name in _PARAMETERS)
            tensors = tensors[:1]
        self.positions: tuple[int, ...] = tuple(i for i, a in tensors if not a.kwarg_only)
        self.keywords: tuple[str, ...] = tuple(a.name for i, a in tensors if a.kwarg_only)
        self.single = (
            len(tensors) == 1
            and "[" not in str(tensors[0][1].type)
            and "List" not in str(tensors[0][1].type)
        )

    def tensors(self, args: Sequence[object], kwargs: Keywords) -> Iterator[torch.Tensor]:
        """Yield the tensors among a call's eligible arguments."""
        count = len(args)
        for value in (
            *(args[i] for i in self.positions if i < count),
            *(kwargs.get(k) for k in self.keywords),
        ):
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from (item for item in value if isinstance(item, torch.Tensor))

    def device(self, args: Sequence[object], kwargs: Keywords) -> str:
        """Return the device type whose kernels count: the first tensor's; the CPU for meta."""
        found = next((tensor.device.type for tensor in self.tensors(args, kwargs)), CPU)
        return CPU if found == META else found

    def convert(
        self, dtype: torch.dtype, args: Sequence[object], kwargs: Keywords, *, keep: bool = False
    ) -> tuple[list[object], Keywords]:
        """Return the arguments with the eligible tensors in `dtype`.

        With `keep`, casts of parameters are kept (`cast_weight`).
        """
        to = cast_weight if keep else cast
        converted = list(args)
        for i in (
            (*self.positions, *self.parameters, *self.statistics)
            if dtype is _FLOAT32
            else self.positions
        ):
            if i < len(converted):
                converted[i] = _convert(to, dtype, converted[i])
        if self.keywords and kwargs:
            kwargs = {
                name: _convert(to, dtype, value) if name in self.keywords else value
                for name, value in kwargs.items()
            }
        return converted, kwargs

    def write_back(self, args: Sequence[Any], converted: Sequence[object]) -> None:
        """Copy the float32 statistics that a call has updated to the low ones that it was given."""
        if self.statistics and args[self.statistics[-1] + 1]:
            with torch.no_grad():
                for i in self.statistics:
                    if converted[i] is not args[i]:
                        args[i].copy_(converted[i])


def _convert(
    to: Callable[[torch.Tensor, torch.dtype], torch.Tensor], dtype: torch.dtype, value: object
) -> object:
    if isinstance(value, torch.Tensor):
        return to(value, dtype)
    if isinstance(value, (list, tuple)):
        return [to(item, dtype) if isinstance(item, torch.Tensor) else item for item in value]
    return value


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with its eligible tensors in `dtype`.

    The value is a tensor, or tuples, lists and dictionaries of tensors.
    """
    return mapped(value, torch.is_tensor, lambda tensor: cast(tensor, dtype))
