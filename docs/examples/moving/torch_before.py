"""Before: PyTorch in float16, with a loss scale, accumulated and clipped gradients, and batch norm.

python torch_before.py FOLDER

Writes the weights that it starts from (torch_start.npz) and those that it ends with
(torch_before.npz).
"""

import numpy as np
import torch
from images import MAX_NORM, MOMENTUM, RATE, arguments, batches
from torch import nn


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def train(model: nn.Sequential, mixed: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=mixed)
    for step in batches():
        optimizer.zero_grad()
        for x, labels in step:
            with torch.autocast("cpu", torch.float16, enabled=mixed):
                loss = nn.functional.cross_entropy(
                    model(torch.from_numpy(x)), torch.from_numpy(labels)
                )
            scaler.scale(loss / len(step)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        print(f"loss {loss.item():.4f}")


def weights(model: nn.Sequential) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    given = arguments()
    torch.manual_seed(0)
    model = network()
    np.savez(given.folder / "torch_start.npz", **weights(model))
    train(model, mixed=given.dtype == "float16")
    np.savez(given.folder / "torch_before.npz", **weights(model))
