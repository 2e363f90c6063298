"""After: the same training in PyTorch, from the same weights, under the lists that Paddle follows.

python torch_after.py FOLDER

Reads paddle_start.npz, and writes torch_after.npz, in Paddle's names and layouts, so that the two
can be held against each other.
"""

import numpy as np
import torch
from images import MAX_NORM, MOMENTUM, RATE, arguments, batches
from torch import nn

import unamp

#: By Paddle's names, what PyTorch calls them.
NAMES = {
    "0.weight": "0.weight",
    "1.weight": "1.weight",
    "1.bias": "1.bias",
    "1._mean": "1.running_mean",
    "1._variance": "1.running_var",
    "5.weight": "5.weight",
    "5.bias": "5.bias",
}


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        # the share of the new, where Paddle's 0.9 is that of the old
        nn.BatchNorm2d(8, momentum=0.1),
        nn.SiLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def load(model: nn.Sequential, weights: dict[str, np.ndarray]) -> None:
    state = {NAMES[name]: torch.from_numpy(value) for name, value in weights.items()}
    state["5.weight"] = state["5.weight"].T  # (in, out) is (out, in) here
    model.load_state_dict(state | {"1.num_batches_tracked": torch.tensor(0)})


def weights(model: nn.Sequential) -> dict[str, np.ndarray]:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    return {
        paddles: state[torchs].T if paddles == "5.weight" else state[torchs]
        for paddles, torchs in NAMES.items()
    }


def train(model: nn.Sequential, mixed: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    scaler = unamp.GradScaler(2.0**12, enabled=mixed)
    for step in batches():
        for x, labels in step:
            with unamp.auto_cast(enable=mixed, custom_black_list=["pool2d"]):
                loss = nn.functional.cross_entropy(
                    model(torch.from_numpy(x)), torch.from_numpy(labels)
                )
            scaler.scale(loss / len(step)).backward()
        scaler.unscale_(optimizer)
        # which Paddle's optimizer did in its step
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    given = arguments()
    model = network()
    load(model, dict(np.load(given.folder / "paddle_start.npz")))
    train(model, mixed=given.dtype == "float16")
    np.savez(given.folder / "torch_after.npz", **weights(model))
