"""One of two processes that train a layer under a region with a scaler.

The gradients of the second process overflow in the third step. Arguments: the port where the two
processes meet, the rank, and the manners ("replicated" or "decorated"), one training for each. The
script prints the outcome of each training, as JSON.
"""

import json
import math
import os
import sys

import numpy as np
import paddle

import unamp


def train(manner, rank):
    paddle.seed(0)
    network = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1))
    optimizer, policy = (
        paddle.optimizer.SGD(0.1, parameters=network.parameters()),
        {"dtype": "float16"},
    )
    if manner == "decorated":  # in Paddle 3.3, gloo's sum of float16 is infinite
        policy = {"dtype": "bfloat16", "level": "O2"}
        unamp.decorate(network, optimizer, **policy)
    parallel = paddle.DataParallel(network)
    scaler = unamp.GradScaler(1024.0, growth_interval=3)
    done = {"ran": [], "scales": []}
    for step in range(6):
        x = np.random.default_rng(2 * step + rank).standard_normal((8, 4), dtype="float32")
        if (step, rank) == (2, 1):
            x[0, 0] = math.inf
        with unamp.autocast(**policy):
            loss = parallel(paddle.to_tensor(x)).square().mean()
        scaler.scale(loss).backward()
        done["ran"].append(scaler.step(optimizer))
        scaler.update()
        optimizer.clear_grad()
        done["scales"].append(scaler.get_scale())
    done["parameters"] = [
        number for p in network.parameters() for number in p.astype("float32").flatten().tolist()
    ]
    return done


def main(port, rank, manners):
    places = [f"127.0.0.1:{port + 1 + each}" for each in range(2)]
    os.environ |= {
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PADDLE_MASTER": f"127.0.0.1:{port}",
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_CURRENT_ENDPOINT": places[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(places),
    }
    paddle.distributed.init_parallel_env()
    done = {manner: train(manner, rank) for manner in manners}
    paddle.distributed.barrier()
    print(json.dumps(done))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
