"""Agreement among ranks that each have a part of the parameters (`torch.distributed.fsdp`)."""

from __future__ import annotations

import sys

import torch

from unamp_torch.hooks import HOOKS


def agreed(optimizer: torch.optim.Optimizer, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return numbers that are not zero where an overflow was found, on this rank or on another.

    With `FullyShardedDataParallel` the scaler must ask all ranks, as
    `torch.distributed.fsdp.sharded_grad_scaler` does. With `fully_shard` gradients are distributed
    tensors, whose operators ask by themselves.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    sharded = next(filter(_is_flattened, parameters), None)
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
    return hasattr(parameter, "to_local") or _is_flattened(parameter)


def _is_flattened(parameter: torch.Tensor) -> bool:
    """Return whether `FullyShardedDataParallel` made a parameter of several, or a part of one."""
    home = "torch.distributed.fsdp._common_utils"
    # Where it is not imported, nobody can have made one.
    return home in sys.modules and bool(HOOKS.load(home)._is_fsdp_flattened(parameter))
