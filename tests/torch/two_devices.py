"""Regions around tensors of several devices at once, and around copies between devices.

Each check is a function; the script runs all, in the order of the file. The second device cannot be
unregistered, so the checks need a process of their own. The first check registers it.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from unamp_torch.conformance import second_device

import unamp
from unamp import Policy

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CPU, SECOND, META = "cpu", second_device.NAME, "meta"
POLICIES = [
    *(
        Policy(level, dtype)
        for level in ("O1", "O2", "O3", "OD")
        for dtype in ("bfloat16", "float16")
    ),
    *(
        Policy("O1", "bfloat16", preset=preset)
        for preset in ("torch-cuda", "paddle", "mindspore", "tensorflow")
    ),
    Policy("O1", "bfloat16", widen_results=True),
]


class Split(torch.nn.Module):
    """A network whose first half is on one device and its second on another."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()
        ).to(first)
        self.two = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Softmax(-1), torch.nn.Linear(8, 4)
        ).to(second)
        self.between = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.two(self.one(x).to(self.between))
        return result


def trained(first: str, second: str, policy: Policy) -> list[torch.Tensor]:
    """Return the result, loss and gradients of one training step of a split network."""
    network = Split(first, second)
    x = torch.linspace(-1, 1, 24).reshape(3, 8).to(first)
    with unamp.policy_region(policy):
        out = network(x)
        loss = F.mse_loss(out, torch.ones(3, 4).to(second))
    loss.backward()
    return [
        out.detach(),
        loss.detach(),
        *(p.grad for p in network.parameters() if p.grad is not None),
    ]


def test_a_region_that_was_open_before_a_device_was_registered_covers_it() -> None:
    regions = [unamp.policy_region(policy) for policy in POLICIES]
    x = torch.ones(2, 2)
    before = []
    for region in regions:
        with region:
            before.append(((x @ x).dtype, (x @ x).exp().dtype))
    with unamp.autocast(level="O2", dtype="float16"):  # open when the device comes
        second_device.register()
        there = x.to(SECOND)
        for region, dtypes in zip(regions, before, strict=True):
            with region:
                for device in (x, there):
                    assert ((device @ device).dtype, (device @ device).exp().dtype) == dtypes
        assert (x @ x).dtype == F16
    with unamp.autocast(level="O2", dtype="float16"):
        assert (there @ there).dtype == F16
    assert (x @ x).dtype == (there @ there).dtype == F32


def test_a_network_on_two_devices_trains_as_on_one() -> None:
    for policy in POLICIES:
        alone = trained(CPU, CPU, policy)
        assert len(alone) == 10
        for split in ((CPU, SECOND), (SECOND, CPU), (SECOND, SECOND)):
            both = trained(*split, policy)
            assert [t.dtype for t in both] == [t.dtype for t in alone], (split, policy)
            for a, b in zip(alone, both, strict=True):
                torch.testing.assert_close(
                    b.cpu(), a, rtol=2e-2 if a.dtype is not F32 else 1e-2, atol=1e-3
                )
        assert [t.dtype for t in trained(META, META, policy)] == [t.dtype for t in alone], policy


def test_numbers_are_those_of_the_cpu_to_the_bit() -> None:
    """Call one operation at a time, each on tensors of three devices in one region."""
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    calls: list[Callable[..., torch.Tensor]] = [
        torch.mm,
        torch.add,
        torch.mul,
        torch.maximum,
        F.linear,
        F.mse_loss,
        lambda x, y: x.exp(),
        lambda x, y: F.softmax(x, -1),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.sum(),
    ]
    for policy in POLICIES:
        for call in calls:
            for low in (F32, BF16, F16):
                with unamp.policy_region(policy):
                    here, there, nowhere = (
                        call(a.to(d, low), b.to(d)) for d in (CPU, SECOND, META)
                    )
                assert here.dtype == there.dtype == nowhere.dtype, (call, policy, low)
                assert torch.equal(here, there.cpu()), (call, policy, low)


def test_copies_keep_dtypes_and_gradients() -> None:
    """A policy has no rule for a copy: it is not cast.

    Its gradient comes back in the dtype of its input.
    """
    x = torch.randn(4, 4, requires_grad=True)
    with unamp.autocast(dtype="bfloat16", level="O3"):
        moved = x.to(SECOND)
        low = (moved @ moved).to(CPU)
        back = torch.empty(4, 4, dtype=F32).copy_(low)
        into = torch.zeros(4, 4, device=SECOND)
        into.copy_(low)
        nowhere = low.to(META)
    assert [t.dtype for t in (moved, low, back, into, nowhere)] == [F32, BF16, F32, F32, BF16]
    assert torch.equal(into.cpu(), low.float())
    assert torch.equal(back.detach(), low.float().detach())
    low.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is F32

    grads, factor = [], torch.randn(4, 4)
    for device in (CPU, SECOND):
        leaf = x.detach().clone().requires_grad_()
        with unamp.autocast(dtype="bfloat16", level="O3"):
            (leaf.to(device) @ factor.to(device)).sum().to(CPU).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)  # type: ignore[arg-type]


def test_scalars_of_the_cpu_meet_tensors_elsewhere() -> None:
    one = torch.tensor(2.0)

    def dtypes(device: str) -> list[torch.dtype]:
        x = torch.ones(2, 2, device=device)
        with unamp.autocast(dtype="bfloat16"):
            product = x @ x
            return [
                (product * one).dtype,
                (one * product).dtype,
                (product + 1.5).dtype,
                torch.where(x > 0, product, one).dtype,
            ]

    assert dtypes(SECOND) == dtypes(META) == dtypes(CPU)


def test_tensors_of_two_devices_in_one_operation_raise_as_outside() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2, device=META)
    said = []
    for region in (
        nullcontext(),
        unamp.autocast(dtype="bfloat16"),
        unamp.autocast(META, "bfloat16"),
    ):
        for call in (torch.mm, torch.add, F.mse_loss):
            try:
                with region:
                    call(a, b)
                said.append("nothing")
            except RuntimeError as error:
                said.append(type(error).__name__)
            assert unamp.current_policy() is None
    assert said == 3 * said[:3]
    assert "RuntimeError" in said


def test_a_region_for_one_leaves_the_others() -> None:
    a = {device: torch.ones(2, 2, device=device) for device in (CPU, SECOND, META)}

    def dtypes() -> tuple[torch.dtype, ...]:
        return tuple((tensor @ tensor).dtype for tensor in a.values())

    for number, device in enumerate(a):
        with unamp.autocast(device, "float16"):
            assert dtypes() == tuple(F16 if n == number else F32 for n in range(3)), device
            for inner, other in enumerate(a):
                with unamp.autocast(other, "bfloat16"):
                    expected = [F16 if n == number else F32 for n in range(3)]
                    expected[inner] = BF16
                    assert dtypes() == tuple(expected), (device, other)
                with unamp.autocast(other, enabled=False):
                    expected = [F16 if n == number else F32 for n in range(3)]
                    expected[inner] = F32
                    assert dtypes() == tuple(expected), (device, other)
            assert dtypes() == tuple(F16 if n == number else F32 for n in range(3)), device
        with unamp.autocast(dtype="bfloat16"), unamp.autocast(device, enabled=False):
            assert dtypes() == tuple(F32 if n == number else BF16 for n in range(3)), device
    assert dtypes() == (F32, F32, F32)
    with unamp.autocast("gpu", "float16"):  # any accelerator
        assert dtypes() == (F32, F16, F32)
    with unamp.autocast(f"{SECOND}:0", "float16"):
        assert dtypes() == (F32, F16, F32)


def test_each_thread_has_its_own() -> None:
    seen: dict[str, Any] = {}

    def run(device: str, dtype: str) -> None:
        x = torch.ones(2, 2, device=device)
        with unamp.autocast(device, dtype):
            barrier.wait()
            seen[device] = (x @ x).dtype
            barrier.wait()
        seen[device] = (seen[device], (x @ x).dtype)

    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=run, args=what) for what in ((CPU, "bfloat16"), (SECOND, "float16"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {CPU: (BF16, F32), SECOND: (F16, F32)}


def test_a_trace_tells_every_device() -> None:
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        for device in (CPU, SECOND, META):
            Split(device, device)(torch.ones(2, 8, device=device))
    count = len(trace.records) // 3
    told = [(r.op, r.inputs, r.compute, r.output) for r in trace.records]
    assert told[:count] == told[count : 2 * count] == told[2 * count :]


if __name__ == "__main__":
    failed = 0
    for name, check in list(globals().items()):
        if name.startswith("test_"):
            try:
                check()
            except Exception:
                failed += 1
                print(f"{name}\n{traceback.format_exc()}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(failed)  # PyTorch's thread for the device's backward passes cannot be ended otherwise
