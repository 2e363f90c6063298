"""The alternative: code that follows the same lists by PyTorch's own means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["function_mode"]

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32))

#: The functions of an operation's name. `a + b` arrives as a method.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "add": (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__),
    "adaptive_avg_pool2d": (F.adaptive_avg_pool2d,),
    "gelu": (F.gelu,),
    "layer_norm": (F.layer_norm,),
    "linear": (F.linear,),
    "log_softmax": (torch.log_softmax, torch.Tensor.log_softmax, F.log_softmax),
    "softmax": (torch.softmax, torch.Tensor.softmax, F.softmax),
    "cross_entropy": (F.cross_entropy,),
}

_NORMS = frozenset(_FUNCTIONS["layer_norm"])


class _Lists(TorchFunctionMode):
    def __init__(self, dtypes: dict[Callable[..., Any], torch.dtype], device: str) -> None:
        super().__init__()
        self.dtypes, self.device = dtypes, device
        self.off = torch.autocast(device, enabled=False)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = self.dtypes.get(func)
        if dtype is None:
            return func(*args, **(kwargs or {}))
        if func in _NORMS and self.device == "cpu":
            # on a CPU the parameters stay float32; CUDA has no kernel for a low input beside them
            args = (_cast(args[0], dtype), *args[1:])
        else:
            args = [_cast(a, dtype) for a in args]
            kwargs = {name: _cast(a, dtype) for name, a in kwargs.items()} if kwargs else {}
        if dtype is not torch.float32:
            return func(*args, **(kwargs or {}))
        with self.off:
            return func(*args, **(kwargs or {}))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is not dtype and value.dtype in _FLOATS:
        return value.to(dtype)
    return value


def function_mode(
    allow: Iterable[str], deny: Iterable[str], device: str = "cpu"
) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes regions: `torch.autocast`, and a mode that follows the lists."""
    dtypes = {function: torch.bfloat16 for op in allow for function in _FUNCTIONS[op]}
    dtypes |= {function: torch.float32 for op in deny for function in _FUNCTIONS[op]}

    def region() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(torch.autocast(device, dtype=torch.bfloat16))
        stack.enter_context(_Lists(dtypes, device))
        return stack

    return region
