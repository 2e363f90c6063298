"""Errors about dtypes that PyTorch raises in a region have a note.

The note names the policy, the tensors, and the operation to deny.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import unamp
from unamp import Policy, policy_region

O2 = Policy("O2", "bfloat16")


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def put_in(boxes: Tensor) -> Tensor:
    """Put decoded boxes into a float32 tensor, as detection networks do."""
    kept = torch.zeros(4, 4)
    boxes = boxes * 2
    kept[torch.arange(4)] = boxes
    return kept


FAILING: dict[str, Callable[[Tensor], Any]] = {
    "put into float32": put_in,
    "to NumPy": lambda x: (x @ x).detach().numpy(),
    "a product with an explicit result": lambda x: torch.mm(
        x * 2, torch.ones(4, 4), out=torch.empty(0)
    ),
    "in place": lambda x: torch.ones(4, 4, dtype=torch.int32).add_(x * 2),
}


@pytest.mark.parametrize("what", FAILING)
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_an_error_about_dtypes_names_the_policy(level: str, what: str) -> None:
    policy = Policy(level, "bfloat16")
    with pytest.raises((RuntimeError, TypeError)) as outside:
        FAILING[what](torch.ones(4, 4, dtype=torch.bfloat16))
    with pytest.raises((RuntimeError, TypeError)) as raised, policy_region(policy):
        FAILING[what](torch.ones(4, 4))
    assert type(raised.value) is type(outside.value), "the error is PyTorch's own"
    assert str(raised.value) == str(outside.value)
    (note,) = notes(raised.value)
    assert note.startswith(f"unamp: raised inside a region of {policy!r}")
    assert "autocast(enabled=False)" in note


def test_the_note_names_tensors_and_what_made_them_low() -> None:
    with pytest.raises(RuntimeError, match="Index put") as raised, policy_region(O2):
        put_in(torch.ones(4, 4, requires_grad=True))
    (note,) = notes(raised.value)
    assert "kept is float32" in note
    assert "boxes is bfloat16 (from mul, which the policy runs in bfloat16)" in note
    assert "deny=['mul']" in note
    with policy_region(Policy("O2", "bfloat16", deny=["mul"])):
        assert put_in(torch.ones(4, 4, requires_grad=True)).dtype is torch.float32


def test_nested_regions_give_one_note_and_it_is_the_innermost_ones() -> None:
    @unamp.autocast("cpu", "bfloat16", level="O3")
    def inner() -> None:
        put_in(torch.ones(4, 4))

    with pytest.raises(RuntimeError) as raised, policy_region(O2), policy_region(O2):
        inner()
    (note,) = notes(raised.value)
    assert "'O3'" in note


def test_a_region_that_is_switched_off_leaves_it_to_the_one_around_it() -> None:
    @policy_region(O2)
    def outer() -> None:
        low = torch.ones(4, 4) * 2
        with unamp.autocast("cpu", enabled=False):
            low @ torch.ones(4, 4)

    with pytest.raises(RuntimeError) as raised:
        outer()
    (note,) = notes(raised.value)
    assert "'O2'" in note
    assert "low is bfloat16" in note


@pytest.mark.parametrize(
    ("policy", "call"),
    [
        (O2, lambda: torch.ones(2, 3) @ torch.ones(2, 3)),
        (O2, lambda: [][0]),
        (Policy("O1", "bfloat16"), lambda: put_in(torch.ones(4, 4, dtype=torch.bfloat16))),
        (
            Policy("O2", "bfloat16", enabled=False),
            lambda: put_in(torch.ones(4, 4, dtype=torch.bfloat16)),
        ),
        (
            Policy("O2", "bfloat16", preset="torch-cuda"),
            lambda: F.binary_cross_entropy(torch.ones(2), torch.ones(2)),
        ),
    ],
    ids=["another shape", "Python's own", "O1", "switched off", "banned"],
)
def test_other_errors_are_left_alone(policy: Policy, call: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as raised, policy_region(policy):
        call()
    assert notes(raised.value) == []


def test_nothing_is_left_behind_and_nothing_is_computed() -> None:
    with unamp.trace() as trace, pytest.raises(RuntimeError) as raised, policy_region(O2):
        put_in(torch.ones(4, 4))
    assert [record.op for record in trace.records] == ["mul"]
    assert unamp.current_policy() is None
    assert raised.value.__context__ is None
