"""The number of this process among those that share work."""

from __future__ import annotations

import os

from unamp.adapter import registry
from unamp.adapter.contract import KnowsRanks

#: The variables in which launchers give a process its number: torchrun, Paddle, MindSpore, MPI and
#: Slurm.
_VARIABLES = (
    "RANK",
    "PADDLE_TRAINER_ID",
    "RANK_ID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
)


def current_rank() -> int:
    """Return the rank that a framework, or else a launcher, gave this process; 0 without one."""
    for adapter in registry.adapters_in_use():
        if isinstance(adapter, KnowsRanks) and (rank := adapter.rank()) is not None:
            return rank
    said = (os.environ.get(name, "") for name in _VARIABLES)
    return next((int(rank) for rank in said if rank.isascii() and rank.isdigit()), 0)
