"""The names of PyTorch's functions, layer classes and operators, for lists that hold objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional

from unamp.adapter.spellings import ObjectNames, at_path
from unamp.vocabulary import vocabulary
from unamp_torch.listing import packet_of

#: The qualified name of an operator.
_QUALIFIED = re.compile(r"\w+::\w+")


def spelling(value: object) -> str | None:
    """Return an object's spelling, with ``torch.`` in front; None where it is not PyTorch's.

    Understood are the vocabulary's functions and layers (``torch.add``, ``torch.nn.Linear``,
    ``torch.nn.functional.softmax``), methods (``torch.Tensor.add``), and operators
    (``torch.ops.aten.add``, also with an overload; an operator of `torch.library.custom_op`; an
    operator's qualified name, ``"library::name"``).
    """
    if isinstance(value, str):
        qualified = _QUALIFIED.fullmatch(value) and packet_of(value)
        return f"torch.{value.removeprefix('aten::')}" if qualified else None
    value = getattr(value, "_opoverload", value)  # an operator of `torch.library.custom_op` has one
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        packet: Any = getattr(value, "overloadpacket", value)
        return f"torch.{packet._qualified_op_name.removeprefix('aten::')}"
    known = _NAMES.spelling(value)
    if known is None and getattr(value, "__objclass__", None) in torch.Tensor.__mro__:
        name = value.__name__.strip("_")  # type: ignore[attr-defined]
        known = f"torch.{name}" if name in vocabulary().spelled("torch") else None
    return known


def _places(name: str) -> Iterator[object]:
    for path in (name, f"nn.functional.{name}", f"Tensor.{name}"):
        yield at_path(torch, path)


_NAMES = ObjectNames("torch", _places)


def made_by(tensor: torch.Tensor) -> Iterator[str]:
    """Yield the operations that a tensor came from, the last first, from autograd's graph."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name().rstrip("0123456789").removesuffix("Backward").lower()
        if op := _of_graphs().get(name):
            yield op
        node = node.next_functions[0][0] if node.next_functions else None


@cache
def _of_graphs() -> dict[str, str]:
    """Return the operations by autograd's names for their operators, in lower case."""
    return {name.replace("_", ""): op for name, op in vocabulary().spelled("torch").items()}
