"""Operators that only choose between operations leave the rule to the chosen one.

Operators that take no tensor and are made of other operators are tested, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from unamp_torch.facts import facts

import unamp
from unamp import Policy, policy_region

F32, F16 = torch.float32, torch.float16

#: The mode and the number of dimensions with which `pad` chooses each operation.
PADS = {
    "constant_pad_nd": ("constant", 2),
    "circular_pad": ("circular", 2),
    **{f"reflection_pad{n}d": ("reflect", n) for n in (1, 2, 3)},
    **{f"replication_pad{n}d": ("replicate", n) for n in (1, 2, 3)},
}

watched = pytest.mark.parametrize("watch", [nullcontext, unamp.trace])


def padded(x: Tensor, op: str) -> Tensor:
    mode, dims = PADS[op]
    return F.pad(x.reshape((1, 1, *(4,) * dims)), (1, 1) * dims, mode=mode)


def sized(op: str) -> Tensor:
    return torch.rand(4 ** PADS[op][1])


def test_all_that_pad_chooses_between_is_known() -> None:
    assert set(facts().chooses["pad"]) == set(PADS)


@watched
@pytest.mark.parametrize("op", PADS)
def test_a_rule_for_what_pad_chooses_holds(op: str, watch: Callable[[], Any]) -> None:
    x = sized(op)
    with policy_region(Policy("O2", "float16", deny=op)), watch():
        assert padded(x, op).dtype == F32
        assert padded(x.half(), op).dtype == F32
        for other in PADS:
            if other != op:
                assert padded(sized(other), other).dtype == F16, other


@watched
@pytest.mark.parametrize("op", PADS)
def test_a_rule_for_pad_holds_whatever_it_chooses(op: str, watch: Callable[[], Any]) -> None:
    x = sized(op)
    with policy_region(Policy("O2", "float16", deny="pad")), watch():
        assert padded(x.half(), op).dtype == F32
    with policy_region(Policy("OD", "float16", allow="pad")), watch():
        assert padded(x, op).dtype == F16


def test_a_trace_names_what_pad_chose() -> None:
    with policy_region(Policy("O2", "float16", preset="torch-cpu")), unamp.trace() as trace:
        padded(sized("reflection_pad2d"), "reflection_pad2d")
        padded(sized("constant_pad_nd"), "constant_pad_nd")
    assert [(r.op, r.compute) for r in trace.records] == [
        ("reflection_pad2d", "float32"),
        ("constant_pad_nd", "float16"),
    ]


class Padding(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return padded(x, "replication_pad2d"), padded(x, "constant_pad_nd")


def test_an_export_follows_what_pad_chose() -> None:
    x, policy = sized("replication_pad2d"), Policy("O2", "float16", preset="torch-cpu")
    with policy_region(policy):
        program = torch.export.export(Padding(), (x,))
    assert [t.dtype for t in program.module()(x)] == [F32, F16]


@watched
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_making_a_tensor_keeps_its_meaning(level: str, watch: Callable[[], Any]) -> None:
    x = torch.rand(6)
    windows = (
        torch.bartlett_window,
        torch.blackman_window,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
    )
    expected = [torch.vander(x), *(window(8) for window in windows)]
    with policy_region(Policy(level, "float16")), watch():
        made = [torch.vander(x), *(window(8) for window in windows)]
        assert torch.blackman_window(8, dtype=torch.float64).dtype == torch.float64
    assert all(
        torch.equal(m, e) and m.dtype == e.dtype for m, e in zip(made, expected, strict=True)
    )
