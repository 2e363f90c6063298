"""A scaler with clipping and a short growth interval."""

import torch
from torch.amp import GradScaler, autocast

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
x, y = torch.randn(8, 3, 6, 6), torch.randn(8, 3)

for _ in range(5):
    optimizer.zero_grad()
    with autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()

RESULT = [p.detach().numpy() for p in model.parameters()] + [scaler.get_scale()]
