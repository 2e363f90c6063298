"""One of two processes that train one network under a region with a scaler; the second's data overflow in the third step.

Arguments: a file where the two meet, and the rank. It prints what happened, as JSON.
"""

import json
import math
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import unamp


def main(meeting: str, rank: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    network = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scaler = unamp.GradScaler(1024.0, growth_interval=3)
    done = {"ran": [], "scales": [], "named": None}
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        if (step, rank) == (2, 1):
            x[0, 0] = math.inf
        with unamp.autocast(dtype="float16"):
            loss = network(x).square().mean()
        scaler.scale(loss).backward()
        done["ran"].append(scaler.step(optimizer))
        done["named"] = done["named"] or scaler.first_nonfinite(optimizer, network)
        scaler.update()
        done["scales"].append(scaler.get_scale())
    done["parameters"] = torch.nn.utils.parameters_to_vector(network.parameters()).tolist()
    print(json.dumps(done))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
