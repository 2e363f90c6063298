"""Training with low parameters steps, saves and restores as float32 training does."""

from __future__ import annotations

import copy
import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import F32, LOW, loss_of, made, same, sgd, values
from decorating import *  # noqa: F403 - the tests that are PaddlePaddle's too
from torch.optim import lr_scheduler

import unamp
from unamp.typing import Level


def checkpointed(kind: str, level: Level, dtype: str, scheduled: bool, **kwargs: Any) -> list[Any]:
    network = made(kind)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
    before = lr_scheduler.StepLR(optimizer, 5, 0.5) if scheduled else None
    unamp.decorate(network, optimizer, level, dtype, **kwargs)
    return [
        network,
        optimizer,
        before or lr_scheduler.StepLR(optimizer, 5, 0.5),
        unamp.GradScaler(4096.0, growth_interval=3),
    ]


@pytest.mark.parametrize(
    "scheduled", [False, True], ids=["schedule made after", "schedule made before"]
)
@pytest.mark.parametrize("kwargs", [{}, {"save_dtype": "float32"}, {"master_grad": True}], ids=str)
@pytest.mark.parametrize(
    ("kind", "level", "dtype"),
    [("conv", "O2", "float16"), ("mlp", "O2", "bfloat16"), ("mlp", "O1", "float16")],
)
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    kind: str, level: Level, dtype: str, kwargs: dict[str, Any], scheduled: bool, tmp_path: Path
) -> None:
    def run(parts: list[Any], steps: range) -> None:
        network, optimizer, schedule, scaler = parts
        for step in steps:
            optimizer.zero_grad()
            for part in range(2):
                loss = loss_of(
                    network, 100 * part + step, overflow=step in (4, 11), level=level, dtype=dtype
                )
                scaler.scale(loss / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

    start = functools.partial(checkpointed, kind, level, dtype, scheduled, **kwargs)
    whole, first = start(), start()
    run(whole, range(20))
    run(first, range(8))
    torch.save([each.state_dict() for each in first], tmp_path / "checkpoint")
    resumed = start()
    for each, state in zip(resumed, torch.load(tmp_path / "checkpoint"), strict=True):
        each.load_state_dict(state)
    assert same(resumed[0], first[0])
    run(resumed, range(8, 20))
    assert same(resumed[0], whole[0])
    assert same(resumed[1], whole[1])
    assert [each.state_dict() for each in resumed[2:]] == [each.state_dict() for each in whole[2:]]


def test_a_closure_sees_the_low_weights() -> None:
    network, exact = made(), made()
    optimizer, theirs = [
        torch.optim.LBFGS(each.parameters(), max_iter=5) for each in (network, exact)
    ]
    unamp.decorate(network, optimizer, "O2", "bfloat16")
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        seen.append({p.dtype for group in optimizer.param_groups for p in group["params"]})
        loss = loss_of(network, 0, level="O2", dtype="bfloat16")
        loss.backward()
        return loss

    def exact_closure() -> torch.Tensor:
        theirs.zero_grad()
        loss = loss_of(exact, 0, enabled=False)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    theirs.step(exact_closure)
    assert seen == [{torch.bfloat16}] * len(seen)
    assert len(seen) >= 5
    reached, exactly = closure().item(), exact_closure().item()
    assert reached == pytest.approx(exactly, abs=0.02)
    assert reached < 0.2 * first.item()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    optimizer.step(closure=closure)


def test_a_closure_sees_the_policy_around_the_step() -> None:
    network = made()
    optimizer = unamp.decorate(network, sgd(network), "O2")[1]
    seen = []

    def closure() -> None:
        seen.append(unamp.current_policy())

    with unamp.autocast(level="O3", dtype="float16"):
        optimizer.step(closure)
        seen.append(unamp.current_policy())
    optimizer.step(closure)
    assert seen[0] is seen[1] is not None
    assert seen[2] is None


def test_torchs_own_scaler_works_with_a_fused_optimizer() -> None:
    network = made()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    unamp.decorate(network, optimizer, "O2")
    scaler, before = torch.amp.GradScaler("cpu", init_scale=64.0), values(network)
    for overflow, changed in ((False, True), (True, False)):
        optimizer.zero_grad()
        before = values(network)
        scaler.scale(loss_of(network, 0, overflow=overflow, level="O2", dtype="float16")).backward()
        scaler.step(optimizer)
        scaler.update()
        assert all(map(torch.equal, before, values(network))) is not changed
    assert scaler.get_scale() == 32.0


@pytest.mark.parametrize("dtype", LOW)
def test_copies_add_gradients_up_in_float32_too(dtype: str) -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2", dtype, master_grad=True)
    copied, restored = (
        copy.deepcopy((network, optimizer)),
        pickle.loads(pickle.dumps((network, optimizer))),
    )
    for other, its in (copied, restored):
        its.zero_grad()
        loss_of(other, 0, level="O2", dtype=dtype).backward()
        assert {p.grad.dtype for p in other.parameters()} == {F32}
