"""Before: Paddle in float16, with a loss scale, accumulated and clipped gradients, and batch norm.

python paddle_before.py FOLDER

Writes the weights that it starts from (paddle_start.npz) and those that it ends with
(paddle_before.npz). On a CPU Paddle's own auto_cast and GradScaler do nothing: there it trains in
float32.
"""

import numpy as np
import paddle
from images import MAX_NORM, MOMENTUM, RATE, arguments, batches
from paddle import nn


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2D(1, 8, 3, padding=1, bias_attr=False),
        nn.BatchNorm2D(8),
        nn.Silu(),
        nn.AvgPool2D(4),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def train(model: nn.Sequential, mixed: bool) -> None:
    clip = nn.ClipGradByGlobalNorm(MAX_NORM)
    optimizer = paddle.optimizer.Momentum(RATE, MOMENTUM, model.parameters(), grad_clip=clip)
    scaler = paddle.amp.GradScaler(enable=mixed, init_loss_scaling=2.0**12)
    for step in batches():
        for x, labels in step:
            with paddle.amp.auto_cast(enable=mixed, custom_black_list=["pool2d"]):
                loss = nn.functional.cross_entropy(
                    model(paddle.to_tensor(x)), paddle.to_tensor(labels)
                )
            scaler.scale(loss / len(step)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        print(f"loss {loss.item():.4f}")


def weights(model: nn.Sequential) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    given = arguments()
    paddle.seed(0)
    model = network()
    np.savez(given.folder / "paddle_start.npz", **weights(model))
    train(model, mixed=given.dtype == "float16")
    np.savez(given.folder / "paddle_before.npz", **weights(model))
