"""Islands of float32 on PyTorch keep the promises of the module `islands`."""

import pytest
import torch
from islands import test_promises  # noqa: F401

import unamp


@pytest.mark.parametrize("rule", ["float32", unamp.Policy("O2", "float32")])
@pytest.mark.parametrize("around", ["bfloat16", "float32"])
def test_a_layer_is_an_island_in_any_region(rule: object, around: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    with unamp.layer_policies(net, {"1": rule}), unamp.autocast(dtype=around):
        low, exact = net[0](x), net(x)
    assert str(low.dtype) == f"torch.{around}"
    assert exact.dtype == torch.float32
    assert torch.equal(exact, torch.nn.functional.linear(low.float(), net[1].weight, net[1].bias))


def test_low_results_of_a_layer_have_no_meaning_in_an_island() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with unamp.layer_policies(net, {"0": "float32"}, result="low"), unamp.autocast(dtype="float32"):
        assert net(torch.randn(4, 8).bfloat16()).dtype == torch.float32
