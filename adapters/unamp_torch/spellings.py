"""The names of PyTorch's functions, layer classes and operators, for lists that hold the objects themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional

from unamp.adapter.spellings import ObjectNames, at_path
from unamp.vocabulary import vocabulary

__all__ = ["spelling"]


def spelling(value: object) -> str | None:
    """Return an object's spelling, with ``torch.`` in front; None for what is not PyTorch's.

    Understood are what the vocabulary's spellings name (``torch.add``, ``torch.nn.Linear``,
    ``torch.nn.functional.softmax``), methods (``torch.Tensor.add``) and operators (``torch.ops.aten.add``, also with an
    overload).
    """
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        packet: Any = getattr(value, "overloadpacket", value)
        return f"torch.{packet._qualified_op_name.removeprefix('aten::')}"
    known = _names().spelling(value)
    if known is None and getattr(value, "__objclass__", None) in torch.Tensor.__mro__:
        name = value.__name__.strip("_")  # type: ignore[attr-defined]
        known = f"torch.{name}" if name in vocabulary().spelled("torch") else None
    return known


@cache
def _names() -> ObjectNames:
    return ObjectNames("torch", _places)


def _places(name: str) -> Iterator[Any]:
    for path in (name, f"nn.functional.{name}", f"Tensor.{name}"):
        yield at_path(torch, path)
