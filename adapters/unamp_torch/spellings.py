"""The names of PyTorch's functions, layer classes and operators, for lists that hold the objects themselves."""

from __future__ import annotations

import functools
from functools import cache
from typing import Any

import torch
import torch.nn.functional

from unamp.vocabulary import vocabulary

__all__ = ["spelling"]


def spelling(value: object) -> str | None:
    """The spelling, with ``torch.`` in front; None for what is not PyTorch's.

    Understood are what the vocabulary's spellings name (``torch.add``, ``torch.nn.Linear``,
    ``torch.nn.functional.softmax``), methods (``torch.Tensor.add``) and operators (``torch.ops.aten.add``, also with an
    overload).
    """
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        packet = getattr(value, "overloadpacket", value)
        return f"torch.{packet._qualified_op_name.removeprefix('aten::')}"
    try:
        known = _named().get(value)
    except TypeError:  # not hashable, so not one of ours
        return None
    if known is None and getattr(value, "__objclass__", None) in torch.Tensor.__mro__:
        name = value.__name__.strip("_")  # type: ignore[attr-defined]
        known = name if name in _bare() else None
    return None if known is None else f"torch.{known}"


@cache
def _named() -> dict[Any, str]:
    found = {}
    for name in _spellings():
        for path in (name, f"nn.functional.{name}", f"Tensor.{name}"):
            try:
                value = functools.reduce(getattr, path.split("."), torch)
            except AttributeError:
                continue
            if callable(value):
                found.setdefault(value, name)
    return found


def _spellings() -> list[str]:
    return [spelled for op in vocabulary().values() for spelled in op.spellings.get("torch", ())]


@cache
def _bare() -> frozenset[str]:
    return frozenset(name for name in _spellings() if "." not in name)
