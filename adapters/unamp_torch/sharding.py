"""Agreement among ranks that each have a part of the parameters (`torch.distributed.fsdp`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from unamp_torch.hooks import HOOKS


def agreed(optimizer: torch.optim.Optimizer, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return numbers that are not zero where an overflow was found, on this rank or on another.

    With `FullyShardedDataParallel` the scaler must ask all ranks, as
    `torch.distributed.fsdp.sharded_grad_scaler` does. With `fully_shard` gradients are distributed
    tensors, whose operators ask by themselves.
    """
    sharded = _flattened(p for group in optimizer.param_groups for p in group["params"])
    if sharded is None:
        return found
    if not found:  # small parameters may lie on other ranks altogether
        found = [torch.zeros((), device=sharded.device)]
    # One exchange, on whichever devices this rank has gradients: all ranks must take part in the
    # same number of exchanges.
    together = torch.stack([each.to(sharded.device) for each in found]).amax()
    torch.distributed.all_reduce(together, torch.distributed.ReduceOp.MAX)
    return [together]


def is_sharded(parameter: torch.Tensor) -> bool:
    """Return whether a parameter is one rank's part of a sharded parameter."""
    return hasattr(parameter, "to_local") or _flattened((parameter,)) is not None


def _flattened(parameters: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Return the first that `FullyShardedDataParallel` made of several, or a part of one."""
    # Without a group of processes nobody can have made one. A PyTorch may be built without groups.
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    home = "torch.distributed.fsdp._common_utils"
    if home not in sys.modules:
        return None
    return next(filter(HOOKS.load(home)._is_fsdp_flattened, parameters), None)
