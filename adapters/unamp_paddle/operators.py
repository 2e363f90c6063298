"""An operation as Paddle's code calls it.

There are two kinds. A *forward function* of `paddle._C_ops` (or a Tensor's `+`, `@`, ...) is one
kernel. A *composite* is a function or layer of Paddle's Python code that calls several forward
functions and is one operation of the vocabulary, like `conv2d` with its bias: its own rule holds
for everything inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from paddle.base import core

from unamp._function_types import Function
from unamp.adapter import performing
from unamp_paddle.state import LOW, NAMES, Tensor, Value

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


class Operator(performing.Operator):
    """One operation; see `unamp.adapter.performing.Operator`.

    Attributes:
        composite: whether it is Python code that is one operation.
        direct: whether it is Python code that calls no forward function.
        in_programs: whether it is an arithmetic operator of the values in programs: Python that
            calls C++.
        sparse: whether its tensors are sparse; for those a CPU has only float32 kernels.
    """

    __slots__ = ("composite", "direct", "in_programs", "sparse")

    def __init__(
        self,
        op: str | None,
        name: str,
        call: Function,
        *,
        composite: bool = False,
        direct: bool = False,
        **kinds: Any,
    ) -> None:
        super().__init__(op, name, call, **kinds)
        self.composite = composite
        self.direct = direct
        self.in_programs = name.startswith("Value.")
        self.sparse = name.startswith(("_C_ops.sparse_", "sparse."))

    def parameters(self, args: Sequence[object]) -> Mapping[int, Tensor | Value]:
        return _parameters(args[0]) if self.layer else {}

    def needs_float32(self) -> bool:
        """Return whether a CPU needs float32 inputs for an operation that no rule reaches.

        Such an operation has no name in the vocabulary, and no low kernel on the CPU.
        """
        if self.op is not None or self.in_place or self.view:
            return False
        return self.composite or not any(
            registered(self.name.rpartition(".")[2], NAMES[low]) for low in LOW
        )

    def runs_natively(self, dtype: paddle.dtype) -> bool:
        """Return whether an operation that only moves data runs in a low dtype on the CPU."""
        return self.composite or registered(self.name.rpartition(".")[2].rstrip("_"), NAMES[dtype])


def _parameters(layer: Layer) -> Mapping[int, Tensor | Value]:
    """Return a layer's parameters by their ids."""
    found = {}
    for home in layer.sublayers(include_self=True):
        for name, own in home._parameters.items():
            value = getattr(home, name)
            if value is None:
                continue
            found[id(value)] = value
            if isinstance(value, Value):
                # `to_static` puts a value in the parameter's place, but the layer may hold the
                # parameter itself in another attribute.
                found[id(own)] = own
    return found


@cache
def _kernels() -> dict[str, list[str]]:
    return core._get_registered_phi_kernels("all")  # type: ignore[no-any-return, attr-defined, unused-ignore]


@cache
def registered(name: str, dtype: str) -> bool:
    """Return whether a forward function, and its gradient, have CPU kernels for a dtype."""

    def has(kernel: str) -> bool:
        return any(
            k.startswith("(CPU") and k.endswith(f", {dtype})") for k in _kernels().get(kernel, ())
        )

    return has(name) and (f"{name}_grad" not in _kernels() or has(f"{name}_grad"))


def indexes(args: Sequence[object]) -> bool:
    """Return whether the second argument is an index with tensors, lists or arrays in it."""
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(item, (Tensor, Value, list, np.ndarray)) for item in items)
