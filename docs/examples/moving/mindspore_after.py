"""After: the same training in MindSpore, from the same weights, under PyTorch's lists.

python mindspore_after.py FOLDER

Reads torch_start.npz, and writes mindspore_after.npz, in PyTorch's names, so that the two can be
held against each other.
"""

import mindspore
import numpy as np
from images import MAX_NORM, MOMENTUM, RATE, arguments, batches
from mindspore import Parameter, Tensor, nn, ops

import unamp

#: By PyTorch's names, what MindSpore calls them. Layouts are the same.
NAMES = {
    "0.weight": "0.weight",
    "1.weight": "1.gamma",
    "1.bias": "1.beta",
    "1.running_mean": "1.moving_mean",
    "1.running_var": "1.moving_variance",
    "5.weight": "5.weight",
    "5.bias": "5.bias",
}


def network() -> nn.SequentialCell:
    return nn.SequentialCell(
        # MindSpore's own pad_mode is "same"; no bias unless asked for
        nn.Conv2d(1, 8, 3, pad_mode="pad", padding=1),
        # the share of the old, where PyTorch's 0.1 is that of the new
        nn.BatchNorm2d(8, momentum=0.9),
        nn.SiLU(),
        nn.AvgPool2d(4, stride=4),  # MindSpore's own stride is 1
        nn.Flatten(),
        nn.Dense(32, 4),
    )


def load(model: nn.SequentialCell, weights: dict[str, np.ndarray]) -> None:
    left = mindspore.load_param_into_net(
        model, {new: Parameter(Tensor(weights[old])) for old, new in NAMES.items()}
    )
    assert left == ([], []), left


def weights(model: nn.SequentialCell) -> dict[str, np.ndarray]:
    held = model.parameters_dict()
    return {old: held[new].asnumpy() for old, new in NAMES.items()}


def train(model: nn.SequentialCell, mixed: bool) -> None:
    model.set_train()  # MindSpore starts in evaluation
    parameters = model.trainable_params()
    optimizer = nn.Momentum(parameters, RATE, MOMENTUM)
    scaler = unamp.GradScaler(2.0**12, enabled=mixed)

    def scaled_loss(x: Tensor, labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
        with unamp.autocast("cpu", "float16", enabled=mixed, preset="torch-cpu"):
            loss = ops.cross_entropy(model(x), labels)
        return scaler.scale(loss * share), loss

    differentiate = mindspore.value_and_grad(scaled_loss, None, parameters, has_aux=True)
    for step in batches():
        # gradients are values: we add them up
        total = [ops.zeros_like(parameter) for parameter in parameters]
        for x, labels in step:
            (_, loss), gradients = differentiate(
                Tensor(x), Tensor(labels.astype(np.int32)), 1 / len(step)
            )
            total = [old + new for old, new in zip(total, gradients, strict=True)]
        unscaled = scaler.unscale_(optimizer, total)
        scaler.step(optimizer, gradients=ops.clip_by_global_norm(tuple(unscaled), MAX_NORM))
        scaler.update()
        print(f"loss {float(loss):.4f}")


if __name__ == "__main__":
    given = arguments()
    model = network()
    load(model, dict(np.load(given.folder / "torch_start.npz")))
    train(model, mixed=given.dtype == "float16")
    np.savez(given.folder / "mindspore_after.npz", **weights(model))
