"""One of two processes that train a network under a region with a scaler.

The gradients of the second process overflow in the third step. Arguments: a file where the two
processes meet, the rank, and the manners (see `network`), one training for each. The script prints
the outcome of each training, as JSON.
"""

import json
import math
import sys

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import unamp


def network(manner: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    if manner == "decorated":
        plain, optimizer = unamp.decorate(
            plain, torch.optim.SGD(plain.parameters(), lr=0.1), level="O2"
        )
        return DistributedDataParallel(plain), optimizer
    if manner == "replicated":
        trained = DistributedDataParallel(plain)
    elif manner.startswith("flattened"):
        trained = FullyShardedDataParallel(
            plain, device_id=torch.device("cpu"), use_orig_params=manner == "flattened-named"
        )
    else:
        trained = fully_shard(plain, mesh=init_device_mesh("cpu", (2,)))
    return trained, torch.optim.SGD(trained.parameters(), lr=0.1)


def spoil(trained: torch.nn.Module) -> None:
    """Make one number infinite in this rank's part of the gradients."""
    gradient = next(p.grad for p in trained.parameters() if p.grad is not None)
    (gradient.to_local() if hasattr(gradient, "to_local") else gradient).view(-1)[0] = math.inf


def vector(trained: torch.nn.Module) -> list[float]:
    """Return all parameters, flattened."""
    if isinstance(trained, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(trained):
            return torch.nn.utils.parameters_to_vector(trained.parameters()).tolist()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in trained.parameters()]
    return torch.nn.utils.parameters_to_vector(whole).tolist()


def train(manner: str, rank: int) -> dict[str, object]:
    trained, optimizer = network(manner)
    scaler = unamp.GradScaler(1024.0, growth_interval=3)
    done = {"ran": [], "scales": [], "named": None}
    for step in range(6):
        overflows = (step, rank) == (2, 1)
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        averaged = manner in ("replicated", "decorated")
        if overflows and averaged:
            x[0, 0] = math.inf
        with unamp.autocast(dtype="float16", level="O2" if manner == "decorated" else "O1"):
            loss = trained(x).square().mean()
        scaler.scale(loss).backward()
        if overflows and not averaged:
            spoil(trained)
        done["ran"].append(scaler.step(optimizer))
        done["named"] = done["named"] or scaler.first_nonfinite(optimizer, trained)
        scaler.update()
        done["scales"].append(scaler.get_scale())
    done["parameters"] = vector(trained)
    return done


def main(meeting: str, rank: int, manners: list[str]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    # In a function of its own: all objects that use the group are gone before the group.
    done = {manner: train(manner, rank) for manner in manners}
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
