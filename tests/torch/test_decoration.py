"""`unamp.decorate` on PyTorch gives low parameters and float32 master weights."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import F32, LOW, loss_of, made, same, sgd, values
from torch import nn
from torch.optim import lr_scheduler
from unamp_torch.masters import masters_of

import unamp


def test_what_stays_in_float32() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(
                [nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm1d(2, affine=True)]
            )
            self.norms.append(nn.InstanceNorm1d(2, affine=True, track_running_stats=True))
            self.norms.extend([nn.LayerNorm(2), nn.GroupNorm(1, 2)])
            self.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Conv1d(2, 2, 1))
            self.exact = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.index = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)

    def low(network: nn.Module, **kwargs: Any) -> set[str]:
        unamp.decorate(network, level="O2", dtype="bfloat16", **kwargs)
        return {
            name.rpartition(".")[0]
            for name, p in network.named_parameters()
            if p.dtype is torch.bfloat16
        }

    assert low(Inner()) == {"norms.2", "norms.4", "norms.5", "deep.0.0", "deep.1"}
    assert low(Inner(), excluded_layers=nn.LayerNorm) == {
        "norms.2",
        "norms.5",
        "deep.0.0",
        "deep.1",
    }
    network = Inner()
    assert low(network, excluded_layers=[network.deep[0], nn.Conv1d]) == {
        "norms.2",
        "norms.4",
        "norms.5",
    }
    assert low(network := Inner(), excluded_layers=network) == set()
    assert (network.exact.dtype, network.index.dtype) == (torch.float64, torch.int64)
    assert {b.dtype for b in network.buffers() if b.is_floating_point()} == {F32}


def test_tied_and_frozen_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.embedding(x)))

    network = Tied()
    optimizer = sgd(network)
    exact = network.embedding.weight.detach().clone()
    unamp.decorate(network, optimizer, "O2")
    assert network.head.weight is network.embedding.weight
    assert network.frozen.weight.dtype is torch.float16
    assert list(masters_of(optimizer).weights) == [network.embedding.weight]
    frozen = values(network.frozen)
    with unamp.autocast(dtype="float16", level="O2"):
        network(torch.arange(5)).float().square().sum().backward()
    optimizer.step()
    assert torch.equal(
        values(optimizer)[0], exact.add(network.head.weight.grad.float(), alpha=-0.1)
    )
    assert all(map(torch.equal, frozen, values(network.frozen)))
    kept = Tied()
    unamp.decorate(kept, level="O2", excluded_layers=kept.head)
    assert kept.embedding.weight.dtype is F32
    network.frozen.requires_grad_(True)  # gets its master weight at its first step
    with unamp.autocast(dtype="float16", level="O2"):
        network(torch.arange(5)).float().square().sum().backward()
    optimizer.step()
    assert len(masters_of(optimizer).weights) == 3


def test_hooks_run_once_and_see_float32() -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda own, args, kwargs: seen.append(own.param_groups[0]["params"][0].grad.dtype)
    )
    optimizer.register_step_post_hook(lambda own, args, kwargs: own.zero_grad())
    optimizer.register_state_dict_post_hook(
        lambda own, state: seen.append(sorted(state["state"][0]))
    )
    optimizer.register_load_state_dict_pre_hook(
        lambda own, state: seen.append(sorted(state["state"][0]))
    )
    schedule = lr_scheduler.StepLR(optimizer, 1)
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    schedule.step()
    assert all(p.grad is None for p in network.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    assert seen == [F32, ["master_weight"], ["master_weight"], F32]


def test_a_graph_can_still_be_used_after_a_step_of_other_parameters() -> None:
    network, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*network.parameters(), *other.parameters()], lr=0.1)
    unamp.decorate([network, other], optimizer, "O2")
    x = torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    pending = network(x).sum()
    other(x).sum().backward()
    optimizer.step()
    pending.backward()
    optimizer.step()
    pending = network(x).sum()
    pending.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_copies_and_pickles() -> None:
    def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(network, step, level="O2", dtype="float16").backward()
            optimizer.step()

    network = made("conv")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    unamp.decorate(network, optimizer, "O2", save_dtype="float32")
    train(network, optimizer, range(3))
    others = [copy.deepcopy((network, optimizer)), pickle.loads(pickle.dumps((network, optimizer)))]
    saved = io.BytesIO()
    torch.save((network, optimizer), saved)
    saved.seek(0)
    others.append(torch.load(saved, weights_only=False))
    train(network, optimizer, range(3, 6))
    for other, its in others:
        assert not same(other, network)
        assert its.param_groups[0]["params"][0] is other[1].weight
        assert type(its) is type(optimizer)
        train(other, its, range(3, 6))
        assert same(other, network)
        assert same(its, optimizer)
        assert {value.dtype for value in other.state_dict().values()} == {F32, torch.int64}


@pytest.mark.parametrize("save_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_saved_of_a_network(save_dtype: str) -> None:
    network = nn.ModuleDict({"body": made("conv"), "other": nn.Linear(2, 2)})
    unamp.decorate(network["body"], level="O2", save_dtype=save_dtype)
    for whole in (network, nn.DataParallel(network)):
        for name, value in whole.state_dict().items():
            buffer = "running" in name or "num_batches" in name
            assert buffer or value.dtype is (
                F32 if ".other." in f".{name}" else getattr(torch, save_dtype)
            ), name
    before = values(network)
    state = copy.deepcopy(network.state_dict())
    for parameter in network.parameters():
        parameter.data.zero_()
    network.load_state_dict(state)
    if save_dtype != "bfloat16":  # bfloat16 has fewer digits
        assert all(map(torch.equal, before, values(network)))
    assert {p.dtype for p in network["body"].parameters()} == {torch.float16, F32}


def test_added_parameters_get_master_weights() -> None:
    network = made()
    optimizer = sgd(network[0])
    unamp.decorate(network, optimizer, "O2")
    optimizer.add_param_group({"params": network[3].parameters(), "lr": 1e-5})
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = network[3].bias.detach().float()
    for _ in range(2):
        optimizer.step()
    assert torch.equal(values(optimizer)[3], before - 1e-5 - 1e-5)


def test_a_checkpoint_of_float32_training_can_be_continued() -> None:
    network = made()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    low = made()
    its = torch.optim.Adam(low.parameters(), lr=0.5)
    unamp.decorate(low, its, "O2")
    low.load_state_dict(network.state_dict())
    its.load_state_dict(optimizer.state_dict())
    assert its.param_groups[0]["lr"] == 0.01
    assert all(map(torch.equal, values(its), (v.half().float() for v in values(network))))
    assert torch.equal(
        its.state[low[0].weight]["exp_avg_sq"], optimizer.state[network[0].weight]["exp_avg_sq"]
    )
    assert all(
        torch.equal(p, q.half())
        for p, q in zip(low.parameters(), network.parameters(), strict=True)
    )


def test_a_bad_checkpoint_changes_nothing() -> None:
    network = made()
    optimizer = sgd(network, momentum=0.9)
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    state, before = copy.deepcopy(optimizer.state_dict()), values(optimizer)
    state["state"][1]["master_weight"] = torch.zeros(3)
    state["state"][0]["master_weight"].zero_()
    with pytest.raises(
        ValueError,
        match=r"master weight of parameter 1 has the shape \(3,\), the parameter has \(32,\)",
    ):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": state["state"], "param_groups": []})
    assert all(map(torch.equal, before, values(optimizer)))
    assert all(map(torch.equal, values(network), (v.half() for v in before)))


def test_sparse_gradients() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    unamp.decorate(embedding, optimizer, "O2")
    before, scaler = values(optimizer)[0], unamp.GradScaler(16.0)
    scaler.scale(embedding(torch.tensor([1, 1, 2])).float().sum()).backward()
    assert scaler.step(optimizer) is True
    moved = before - values(optimizer)[0]
    torch.testing.assert_close(
        moved, torch.tensor([0.0, 0.1, 0.1, 0.0, 0.0])[:, None].expand(5, 3), atol=1e-4, rtol=0
    )


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_networks_that_are_distributed_already_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    for distributed in (
        nn.parallel.DistributedDataParallel(made()),
        FullyShardedDataParallel(made(), device_id=torch.device("cpu")),
        fully_shard(made(), mesh=init_device_mesh("cpu", (1,))),
    ):
        with pytest.raises(ValueError, match="distributed already"):
            unamp.decorate(nn.Sequential(distributed), level="O2")
        assert {p.dtype for p in distributed.parameters()} == {F32}


@pytest.mark.parametrize("watched", [False, True], ids=["", "by a trace"])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), nn.InstanceNorm1d(8, affine=True)],
    ids=repr,
)
def test_norms_with_low_parameters(norm: nn.Module, dtype: str, watched: bool) -> None:
    exact, norm = norm, copy.deepcopy(norm)
    nn.init.uniform_(norm.weight)
    unamp.decorate(norm, level="O2", dtype=dtype)
    exact.load_state_dict(norm.state_dict())
    x = torch.randn(4, 8, 8)
    low = x.to(LOW[dtype])
    for deny, given, atol in (
        ("layer_norm group_norm rms_norm instance_norm".split(), x, 1e-6),
        ((), low, 0.05),
    ):
        with (
            unamp.trace() if watched else contextlib.nullcontext(),
            unamp.autocast(dtype=dtype, level="O3", deny=deny),
        ):
            found = norm(given)
        assert found.dtype is (F32 if deny else LOW[dtype])
        torch.testing.assert_close(found.float(), exact(given.float()), rtol=0, atol=atol)
        found.float().sum().backward()
        assert norm.weight.grad.dtype is LOW[dtype]
