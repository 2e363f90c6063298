"""lightning: training steps under Fabric, with its precision as the native way."""

import torch
from client import measure
from contextlib import nullcontext
from lightning.fabric import Fabric


def build(region, precision="32-true"):
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 30 * 30, 10),
    )
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    x, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def step():
        optimizer.zero_grad()
        with region():
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        fabric.backward(loss)
        optimizer.step()
        return float(loss.detach())

    return step


measure(build, lambda: build(nullcontext, "bf16-mixed"))
