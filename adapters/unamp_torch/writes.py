"""Writes to the memory of parameters, after which no earlier cast of a parameter may be used.

Native autocast keeps casts by parameter and never asks whether they are still valid. A parameter's
version does not tell: fused optimizers and ``parameter.data.add_()`` leave it as it is. So in every
region the operators that write to a tensor have a kernel that looks at the tensor, and drops all
casts where it may have a parameter's memory.

Writes that PyTorch's dispatcher does not see (an optimizer with kernels of its own, NumPy on the
same memory) come after a backward pass in all training; casts are dropped there, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from unamp._function_types import Function
from unamp.adapter.replacing import as_replacement
from unamp_torch.compiled import library
from unamp_torch.state import set_excluded, thread

R = TypeVar("R")

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_tensors_of = torch._C._storage_Use_Count
_has_storage = torch._C._has_storage

#: The operator that ``parameter.data = tensor`` calls first; the rest of it passes no dispatcher.
_EXCHANGES_MEMORY = "aten::_has_compatible_shallow_copy_type"

#: The references to a storage that belongs to one tensor: the tensor's, and that of the object
#: which is made to ask for the number.
_OF_ONE_TENSOR = 2


def drop_casts() -> None:
    """Drop the casts of parameters that this thread keeps, and all of native autocast's."""
    if thread.weights:
        thread.weights.clear()
    if library is not None:
        library.drop_casts()
    torch.clear_autocast_cache()


@as_replacement
def dropping(original: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Wrap a function that is called for a change without an operator: drop casts in a region."""
    if thread.plan is not None:
        drop_casts()
    return original(*args, **kwargs)


@functools.cache
def operators() -> Mapping[str, tuple[int, ...]]:
    """Return the names of operators that write to a tensor, with the written arguments' positions.

    Operators made of others are left out, as the others write.
    """
    return {**dict(_writing()), _EXCHANGES_MEMORY: (0,)}


def _writing() -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or _has_kernel(name, "CompositeImplicitAutograd"):
            continue
        of_others = _has_kernel(name, "CompositeExplicitAutograd")
        if not (of_others or _has_kernel(name, "CPU") or _has_kernel(name, "CUDA")):
            continue
        schema = _schema(name)
        if schema is None or not schema.is_mutable:
            continue
        written = [
            (n, each)
            for n, each in enumerate(schema.arguments)
            if each.alias_info and each.alias_info.is_write
        ]
        # Such an operator fills an explicit output by a copy, which is a write of its own.
        if written and not (of_others and any(each.is_out for _, each in written)):
            yield name, tuple(n for n, _ in written)


def _schema(name: str) -> torch.FunctionSchema | None:
    base, _, overload = name.partition(".")
    try:
        return torch._C._get_schema(base, overload)
    except RuntimeError:  # an operator of TorchScript's own
        return None


def kernel_of(name: str, positions: Sequence[int], own_key: torch._C.DispatchKey) -> Function:
    """Return the kernel of an operator that writes, for one of our keys."""
    base, _, overload_name = name.removeprefix("aten::").partition(".")
    overload = getattr(getattr(torch.ops.aten, base), overload_name or "default")
    call: Function = overload._op
    written = [(n, overload._schema.arguments[n].name) for n in positions]

    def kernel(*args: Any, **kwargs: Any) -> object:
        # Asked before the write, which may make autograd's data about a view invalid.
        drops = any(
            _may_belong_to_a_parameter(args[n] if n < len(args) else kwargs.get(name))
            for n, name in written
        )
        set_excluded(own_key, True)
        try:
            return call(*args, **kwargs)
        finally:
            set_excluded(own_key, False)
            if drops:
                drop_casts()

    return kernel


def _may_belong_to_a_parameter(written: object) -> bool:
    if isinstance(written, (list, tuple)):
        return any(map(_may_belong_to_a_parameter, written))
    if not isinstance(written, torch.Tensor) or written.dtype is torch.int64:
        # int64 is most often a layer's counter, and never a parameter that is cast
        return False
    if written.requires_grad:
        # While gradients are recorded, autograd refuses to write to a view of a parameter.
        return written.is_leaf or (not torch.is_grad_enabled() and _shares_memory(written))
    return _shares_memory(written)


def _shares_memory(tensor: torch.Tensor) -> bool:
    """Return whether other tensors may share a tensor's memory; with a new tensor, none does."""
    return not _has_storage(tensor) or _tensors_of(tensor.untyped_storage()._cdata) > _OF_ONE_TENSOR
