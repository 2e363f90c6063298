"""accelerate: training steps through its prepared model, optimizer and backward."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from client import measure
from contextlib import nullcontext


def build(region, precision="no"):
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True), 2
    )
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    x = torch.randn(4, 32, 128)

    def step():
        optimizer.zero_grad()
        with region():
            loss = (model(x).float() - 1).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        return float(loss.detach())

    return step


measure(build, lambda: build(nullcontext, "bf16"))
