"""`auto_mixed_precision` on PyTorch modules."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import unamp

F32 = torch.float32


def made() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_module_computes_low_and_returns_float32(level: str, dtype: object) -> None:
    network, x = made(), torch.randn(2, 1, 8, 8)
    with unamp.trace() as trace:
        found = unamp.auto_mixed_precision(network, level, dtype)(x)
    low = str(dtype).removeprefix("torch.")
    computed = {record.op: record.compute for record in trace.records}
    assert computed["conv2d"] == computed["linear"] == computed["relu"] == low
    assert computed["batch_norm"] == (low if level == "O3" else "float32")
    assert found.dtype == F32
    torch.testing.assert_close(found, network(x), rtol=0.05, atol=0.05)


def test_the_module_stays_a_module() -> None:
    network = made()
    wrapped = unamp.auto_mixed_precision(network, "O2", "bfloat16")
    assert isinstance(wrapped, nn.Sequential)
    assert list(wrapped.state_dict()) == list(network.state_dict())
    assert all(a is b for a, b in zip(wrapped.parameters(), network.parameters(), strict=True))
    wrapped.eval()
    assert not network.training
    wrapped(torch.randn(2, 1, 8, 8)).sum().backward()
    assert {p.grad.dtype for p in network.parameters()} == {F32}
    assert network(torch.randn(2, 1, 8, 8)).dtype == F32


def test_hooks_and_copies() -> None:
    wrapped, x, seen = unamp.auto_mixed_precision(made(), "O2", "bfloat16").eval(), torch.randn(2, 1, 8, 8), []
    handle = wrapped.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    expected = wrapped(x)
    handle.remove()
    assert seen == [F32]
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        torch.testing.assert_close(other(x), expected)
        assert other[0].weight is not wrapped[0].weight


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="torch.nn.Module"):
        unamp.auto_mixed_precision(torch.relu, "O1")
    with pytest.raises(ValueError, match="float64"):
        unamp.auto_mixed_precision(made(), "O1", torch.float64)
