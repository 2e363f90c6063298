"""A device chosen at run time, regions inside regions, and gradients that are accumulated."""

import torch

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = True
model = torch.nn.ModuleList([torch.nn.Linear(10, 10), torch.nn.Linear(10, 5)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = [(torch.randn(4, 10, device=device), torch.randn(4, 5, device=device)) for _ in range(4)]

for number, (x, y) in enumerate(batches):
    with torch.autocast(
        device_type=device, dtype=torch.bfloat16, enabled=use_amp, cache_enabled=False
    ):
        hidden = model[0](x).relu()
        with torch.autocast(device_type=device, enabled=False):
            hidden = hidden.float() @ hidden.float().t() @ hidden.float()
        with torch.autocast(device, cache_enabled=True):
            out = model[1](hidden)
        loss = torch.nn.functional.smooth_l1_loss(out, y)
    (loss / 2).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()

RESULT = [p.detach().cpu().numpy() for p in model.parameters()]
