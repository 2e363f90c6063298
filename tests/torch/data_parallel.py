"""One of two processes that train one network under a region with a scaler; on the second, the third step overflows.

Arguments: "replicated" or "sharded", a file where the two meet, and the rank. It prints what happened, as JSON.
"""

import json
import math
import sys

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import unamp


def network(manner: str) -> torch.nn.Module:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    if manner == "replicated":
        return DistributedDataParallel(plain)
    return fully_shard(plain, mesh=init_device_mesh("cpu", (2,)))


def train(manner: str, rank: int) -> dict[str, object]:
    trained = network(manner)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    scaler = unamp.GradScaler(1024.0, growth_interval=3)
    done = {"ran": [], "scales": [], "named": None}
    for step in range(6):
        overflows = (step, rank) == (2, 1)
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        if overflows and manner == "replicated":
            x[0, 0] = math.inf
        with unamp.autocast(dtype="float16"):
            loss = trained(x).square().mean()
        scaler.scale(loss).backward()
        if overflows and manner == "sharded":  # in this rank's shard alone
            trained[0].weight.grad.to_local()[0, 0] = math.inf
        done["ran"].append(scaler.step(optimizer))
        done["named"] = done["named"] or scaler.first_nonfinite(optimizer, trained)
        scaler.update()
        done["scales"].append(scaler.get_scale())
    whole = [p if manner == "replicated" else p.full_tensor() for p in trained.parameters()]
    done["parameters"] = torch.nn.utils.parameters_to_vector(whole).tolist()
    return done


def main(manner: str, meeting: str, rank: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    done = train(manner, rank)  # in a function of its own: what uses the group is gone before the group
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
