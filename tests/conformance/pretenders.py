"""Adapters that carry out a policy in different ways: some right, the others wrong.

The wrong ones have defects that real adapters could have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from unamp_torch.conformance.operations import TorchOperations

from unamp.policy import Policy, Rule

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(part, change) for part in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def _to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    eligible = (torch.float16, torch.bfloat16, torch.float32)
    return lambda tensor: tensor.to(dtype) if tensor.dtype in eligible else tensor


def honest(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Cast the inputs, compute, and leave the result as it is."""
    return call(*_map(args, _to(dtype)))


def emulating(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Round the inputs, compute in float32, and round the result: as right as `honest`."""
    rounded = _map(_map(args, _to(dtype)), _to(torch.float32))
    return _map(call(*rounded), _to(dtype))


def relabelling(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Compute in float32, and change the result's dtype."""
    return _map(call(*_map(args, _to(torch.float32))), _to(dtype))


def rounding_inputs_only(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Round the inputs, but compute in float32, and leave the result in it."""
    return call(*_map(_map(args, _to(dtype)), _to(torch.float32)))


def mistaken(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Compute in the other low dtype, and label the result with the right one."""
    other = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16
    return _map(call(*_map(args, _to(other))), _to(dtype))


def forgetful(call: Callable[..., Any], args: Any, dtype: torch.dtype) -> Any:
    """Do nothing about the policy."""
    return call(*args)


class Pretender(TorchOperations):
    """torch's operations in a pretended region.

    The class has the part of `unamp_conformance.subjects.Subject` that probes need.
    """

    framework, device = "torch", "cpu"

    def __init__(self, manner: Callable[..., Any]) -> None:
        super().__init__()
        self.manner = manner
        self.policy: Policy | None = None

    @property
    def operations(self) -> Pretender:
        return self

    def rule(self, policy: Policy, op: str) -> Rule:
        return policy.decide(op)

    @contextmanager
    def region(self, policy: Policy) -> Iterator[None]:
        self.policy = policy
        try:
            yield
        finally:
            self.policy = None

    def __getitem__(self, op: str) -> Callable[..., Any]:
        function = super().__getitem__(op)

        def call(*args: Any, **kw: Any) -> Any:
            rule = self.policy.decide(op) if self.policy else Rule.UNTOUCHED
            dtypes = {Rule.LOW: self.policy and DTYPES[self.policy.dtype], Rule.FP32: torch.float32}
            if rule not in dtypes:
                return function(*args, **kw)
            return self.manner(lambda *given: function(*given, **kw), args, dtypes[rule])

        return call


class Confused(TorchOperations):
    """torch's operations, some of them bound wrongly: another order, axis or default."""

    WRONG: Mapping[str, Callable[..., Any]] = {
        "sub": lambda a, b: b - a,
        "pixel_shuffle": lambda input, factor: torch.pixel_shuffle(input.flip(1), factor),
        "sum": lambda input, dim: input.sum(1 - dim),
        "std": lambda input, dim, correction: input.std(dim),
        "leaky_relu": lambda input: torch.nn.functional.leaky_relu(input, 0.2),
    }

    def __getitem__(self, op: str) -> Callable[..., Any]:
        return self.WRONG.get(op) or super().__getitem__(op)
