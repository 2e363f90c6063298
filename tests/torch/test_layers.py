"""`unamp.layer_policies` on PyTorch reaches the named layers and leaves the others alone.

Each way in which PyTorch runs a module is tested.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ruled
import torch
import torch._dynamo
from ruled import test_promises  # noqa: F401
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from unamp_torch.adapter import TorchAdapter

import unamp
from unamp import NotExpressible, Policy

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = Policy("O3", "bfloat16")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.wi(x), self.wo(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (*self.blocks[0](x), *self.blocks[1](x))


@pytest.fixture
def net() -> Net:
    torch._dynamo.reset()
    return Net()


x = torch.linspace(-1, 1, 8).reshape(2, 4)
RULE = {"**.wo": "float32"}
EXPECTED = [BF16, F32, BF16, F32]


def region() -> Any:
    return unamp.autocast("cpu", BF16)


def dtypes(run: Callable[..., Any]) -> list[torch.dtype]:
    with region():
        return [result.dtype for result in run(x)]


class _Overflows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.LayerNorm(4), nn.Linear(4, 1)
        with torch.no_grad():
            self.block.wo.weight.fill_(9000.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block.wo(torch.relu(self.block.wi(x)) + 4)))  # type: ignore[no-any-return]


def _losses(rules: Any) -> list[float]:
    torch.manual_seed(1)
    network = _Overflows()
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    handle = unamp.layer_policies(network, rules) if rules else None
    losses = []
    for _ in range(4):
        with unamp.autocast(dtype="float16"):
            loss = (network(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if handle:
        handle.remove()
    return losses


OF = ruled.Layers(
    Net,
    x,
    dtype=lambda tensor: str(tensor.dtype).removeprefix("torch."),
    numbers=lambda tensor: tensor.detach().float().numpy(),
    first="blocks.0",
    second="blocks.1",
    low=lambda tensor: tensor.bfloat16(),
    losses=_losses,
)


def test_nothing_is_left(net: Net) -> None:
    rules = unamp.layer_policies(net, RULE)
    assert isinstance(net.blocks[0].wo, nn.Linear)
    assert list(net.state_dict()) == list(Net().state_dict())
    rules.remove()
    assert dtypes(net) == [BF16] * 4
    assert type(net.blocks[0].wo) is nn.Linear
    assert vars(net.blocks[0].wo).keys() == vars(nn.Linear(4, 4)).keys()


def test_float32_takes_low_inputs_and_low_parameters(net: Net) -> None:
    unamp.decorate(net, level="O2", dtype="bfloat16", excluded_layers=net.blocks[1])
    with unamp.layer_policies(net, {"blocks.0.wo": "float32", "blocks.1.wi": "float32"}):
        first, second = net.blocks
        assert (first.wo(x.bfloat16()).dtype, second.wi(x.bfloat16()).dtype) == (F32, F32)
    rules = unamp.layer_policies(net, RULE)
    unamp.decorate(net.blocks[1], level="O2", dtype="bfloat16")  # the other order
    assert dtypes(net) == EXPECTED
    rules.remove()


def test_results_go_back_to_low(net: Net) -> None:
    with unamp.layer_policies(net, RULE, result="low"):
        assert dtypes(net) == [BF16] * 4
        with unamp.autocast("cpu", F16):
            assert net(x)[1].dtype is F16
        assert net(x)[1].dtype is F32  # nothing is low around the layer
        assert net.blocks[0].wo(x.bfloat16()).dtype is BF16
        with torch.autocast("cpu", BF16):
            assert net(x)[1].dtype is BF16


def test_copies_and_pickles_have_the_rule_and_their_own_parameters(net: Net) -> None:
    rules = unamp.layer_policies(net, RULE)
    copies = copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.copy(net)
    for made in copies[:2]:
        with torch.no_grad():
            made.blocks[0].wo.weight.fill_(0)
            made.blocks[0].wo.bias.fill_(1)
        assert dtypes(made) == EXPECTED
        assert torch.equal(made.blocks[0].wo(x), torch.ones(2, 4))
    rules.remove()
    assert dtypes(copies[0]) == EXPECTED
    assert dtypes(net) == [BF16] * 4


def test_compiled_functions_follow_rules_put_on_and_removed_later(net: Net) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, backend=counter, fullgraph=True)
    assert dtypes(compiled) == [BF16] * 4
    for result, expected in ((None, EXPECTED), ("low", [BF16] * 4)):
        with unamp.layer_policies(net, RULE, result=result), region():
            assert [r.dtype for r in compiled(x)] == expected
            assert all(map(torch.equal, compiled(x), net(x)))
        assert dtypes(compiled) == [BF16] * 4
    with unamp.layer_policies(net, RULE):
        assert dtypes(compiled) == EXPECTED
    assert counter.frame_count == 3  # without, with, and with results cast to low
    with unamp.layer_policies(compiled, {"blocks.0.wi": "float32"}) as rules:
        # by the names of the compiled modules
        assert dict(rules.layers) == {"blocks.0.wi": "float32"}
        assert dtypes(compiled) == [F32, BF16, BF16, BF16]


def test_a_region_inside_the_compiled_function(net: Net) -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        with unamp.autocast("cpu", BF16):
            return net(x)  # type: ignore[no-any-return]

    with unamp.layer_policies(net, RULE):
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        assert [result.dtype for result in compiled(x)] == EXPECTED
    assert [result.dtype for result in compiled(x)] == [BF16] * 4


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_have_the_rules(net: Net, strict: bool) -> None:
    with unamp.layer_policies(net, {"**.wo": LOW}):
        exported = torch.export.export(net, (x,), strict=strict)
    with unamp.layer_policies(net, RULE), region():
        in_region = torch.export.export(net, (x,), strict=strict)
    with unamp.layer_policies(net, {":Net": "float32", "blocks.0.wi": LOW}), region():
        whole = torch.export.export(net, (x,), strict=strict)
    assert [result.dtype for result in whole.module()(x)] == [BF16, F32, F32, F32]
    assert [result.dtype for result in exported.module()(x)] == [F32, BF16] * 2
    assert [result.dtype for result in in_region.module()(x)] == EXPECTED


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_programs_have_the_rules_and_scripts_are_refused(net: Net) -> None:
    with unamp.layer_policies(net, {"**.wo": LOW}):
        traced = torch.jit.trace(net, (x,))
        with pytest.raises(
            NotExpressible, match=r"torch\.jit\.script .* this Linear would be lost"
        ):
            torch.jit.script(net)
    assert [result.dtype for result in traced(x)] == [F32, BF16] * 2
    torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(NotExpressible, match="code that PyTorch has generated"):
        unamp.layer_policies(traced, RULE)


def test_symbolic_traces_keep_leaves_and_refuse_the_rest() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), Block())
    with unamp.layer_policies(net, {"0.0": LOW}):
        assert torch.fx.symbolic_trace(net[0])(x).dtype is BF16
    with (
        unamp.layer_policies(net, {"1": LOW}),
        pytest.raises(NotExpressible, match=r"symbolic_trace .* rule would be lost"),
    ):
        torch.fx.symbolic_trace(net)


def test_the_same_under_functional_call_vmap_and_checkpoint(net: Net) -> None:
    with unamp.layer_policies(net, RULE), region():
        parameters = dict(net.named_parameters())
        assert [r.dtype for r in torch.func.functional_call(net, parameters, (x,))] == EXPECTED
        assert [r.dtype for r in torch.vmap(net)(x)] == EXPECTED
        assert [r.dtype for r in checkpoint(net, x, use_reentrant=False)] == EXPECTED


def test_recomputation_has_the_rule_of_the_forward(net: Net) -> None:
    def gradients(recompute: bool) -> list[Tensor]:
        net.zero_grad()
        with unamp.layer_policies(net, RULE), region():
            found = checkpoint(net, x, use_reentrant=False) if recompute else net(x)
            torch.stack([result.float().square().mean() for result in found]).sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    assert all(map(torch.equal, gradients(True), gradients(False)))


def test_data_parallel_wrappers_are_looked_through(net: Net) -> None:
    wrapped = nn.DataParallel(net)
    net.cpu()  # where there is a GPU, the network is on it by now
    with unamp.layer_policies(wrapped, RULE) as rules:
        assert "blocks.0.wo" in rules.layers
        assert dtypes(net) == EXPECTED


def test_rules_hold_in_every_thread_and_regions_in_their_own(net: Net) -> None:
    found: list[Any] = []

    def run() -> None:
        found.extend(result.dtype for result in net(x))

    with unamp.layer_policies(net, {"blocks.0.wi": LOW}), region():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert found == [BF16, F32, F32, F32]


def test_a_class_that_somebody_derives_later_stays(net: Net) -> None:
    class Same(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight

    rules = unamp.layer_policies(net, RULE)
    parametrize.register_parametrization(net.blocks[0].wo, "weight", Same())
    assert dtypes(net) == EXPECTED
    rules.remove()
    assert dtypes(net) == [BF16] * 4
    parametrize.remove_parametrizations(net.blocks[0].wo, "weight")
    with unamp.layer_policies(net, RULE):
        assert dtypes(net) == EXPECTED
    assert type(net.blocks[0].wo) is nn.Linear


def test_a_class_that_refuses_to_be_derived_from_leaves_no_layer_with_a_rule() -> None:
    class Registered(nn.Linear):
        def __init_subclass__(cls, *, name: str) -> None:
            raise AssertionError

    network = nn.Sequential(nn.Linear(4, 4), Registered(4, 4))
    with pytest.raises(TypeError, match="name"):
        unamp.layer_policies(network, {"*": "float32"})
    assert [type(layer) for layer in network] == [nn.Linear, Registered]
    assert not any("unamp" in name for layer in network for name in vars(layer))
    with unamp.autocast("cpu", "bfloat16"):
        assert network(torch.ones(2, 4)).dtype == BF16


def test_a_forward_of_the_instance_is_refused(net: Net) -> None:
    net.blocks[1].wo.forward = net.blocks[1].wo.forward
    with pytest.raises(NotExpressible, match="forward of its own, put on the instance"):
        unamp.layer_policies(net, RULE)
    assert dtypes(net) == [BF16] * 4  # no layer got a rule


def test_layers_of_an_encoder_are_called_in_evaluation_too() -> None:
    """PyTorch has one operator for a whole encoder layer, which calls none of the layers inside."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    given = torch.rand(1, 3, 4)

    def ran() -> set[str | None]:
        with torch.no_grad(), unamp.trace() as trace:
            layer(given)
        return {record.layer for record in trace.records if record.rule is unamp.Rule.LOW}

    with unamp.layer_policies(layer, {":Linear": LOW, "self_attn": LOW}) as rules:
        # an attention is one operation, with its output projection
        assert rules.layers.keys() == {"self_attn", "linear1", "linear2"}
        kind = "TransformerEncoderLayer"
        assert ran() == {f"{kind}.self_attn", f"{kind}.linear1", f"{kind}.linear2"}
    assert ran() == set()
    assert not layer.linear1._forward_pre_hooks


class _OwnCall(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.linear(x, self.weight, self.bias)


def test_a_class_with_a_call_of_its_own() -> None:
    net = nn.Sequential(_OwnCall(4, 4))
    with unamp.layer_policies(net, {"0": LOW}):
        assert net(x).dtype is BF16
    assert net(x).dtype is F32


def test_an_adapter_without_layers_says_so(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TorchAdapter, "layered")
    with pytest.raises(NotExpressible, match="the adapter for torch has no rules for layers"):
        unamp.layer_policies(net, RULE)
