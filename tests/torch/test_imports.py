"""A user's program loads no module of the adapter that it does not use."""

from __future__ import annotations

from elsewhere import forked


def test_nothing_that_a_user_does_loads_conformance() -> None:
    code = """
import sys
import torch, unamp
network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(network.parameters(), 0.1)
network, optimizer = unamp.decorate(network, optimizer, level="O2", dtype="bfloat16")
scaler = unamp.GradScaler()
with unamp.trace() as trace, unamp.autocast("cpu", dtype="bfloat16", allow=["add", torch.nn.functional.normalize]):
    loss = torch.nn.functional.normalize(network(torch.randn(3, 4)) + 1).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
unamp.explain(unamp.Policy(deny="linear"))
assert trace.records and "unamp_torch.decoration" in sys.modules
print(*(name for name in sys.modules if "conformance" in name and name.startswith("unamp")))
"""  # noqa: E501
    assert forked("torch", code).strip() == ""
