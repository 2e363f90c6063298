"""The older modules, as in scripts from before torch 2.4.

Without a GPU torch's scaler does nothing.
"""

import torch
from torch import nn
from torch.cpu import amp
from torch.cuda.amp import GradScaler  # nothing is scaled by it on a CPU

torch.manual_seed(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 12), nn.Linear(12, 2)

    @amp.autocast()
    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


model, scaler = Net(), GradScaler(init_scale=256.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(16, 6), torch.randn(16, 2)
for _ in range(4):
    optimizer.zero_grad()
    loss = (model(x).float() - y).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

RESULT = [p.detach().numpy() for p in model.parameters()]
