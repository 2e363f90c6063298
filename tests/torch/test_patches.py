"""A region patches PyTorch's Python code only where its policy needs a patch."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import forked
from unamp_torch import transforming

from unamp import Policy, policy_region

POLICY = Policy("O1", "bfloat16", allow="add")

COLD = """
import sys, torch, unamp
from torch.export import exported_program
from torch.fx.experimental import proxy_tensor

def standing():
    return proxy_tensor.wrap_key, exported_program._decompose_exported_program, torch.autograd.graph._engine_run_backward

before = standing()
region = unamp.autocast("cpu", dtype="bfloat16", allow="add")
with region:
    print("torch._dynamo" in sys.modules, standing() == before)
    if sys.argv[1] == "make_fx":
        program = proxy_tensor.make_fx(lambda x: x + x, pre_dispatch=True)(torch.ones(2))
    else:
        program = torch.export.load(sys.argv[1]).run_decompositions().module()
    print("torch._dynamo" in sys.modules, any(now is then for now, then in zip(standing(), before)))
with region:
    print(any(now is then for now, then in zip(standing(), before)))
print(standing() == before, program(torch.ones(2)).dtype)
"""  # noqa: E501


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


@pytest.mark.parametrize("how", ["make_fx", "loaded"])
def test_what_only_the_compiler_calls_is_patched_as_soon_as_that_is_imported(
    how: str, tmp_path: Path
) -> None:
    dtype = torch.bfloat16
    if how == "loaded":  # a program keeps its dtypes, decomposed inside a region or not
        how, dtype = str(tmp_path / "add.pt2"), torch.float32
        torch.export.save(torch.export.export(Add(), (torch.ones(2),)), how)
    assert forked("torch", COLD, how).split() == [
        "False",
        "True",
        "True",
        "False",
        "False",
        "True",
        str(dtype),
    ]


def taking_levels_off() -> list[Any]:
    return [getattr(module, name) for module, name in transforming._TAKING_OFF]


def test_what_takes_a_level_off_is_patched_from_the_first_level_to_the_last_region() -> None:
    before, x = taking_levels_off(), torch.rand(2, 2)
    with policy_region(POLICY):
        assert taking_levels_off() == before
        torch.func.vmap(torch.sin)(x)
        patched = taking_levels_off()
        assert not set(patched) & set(before)
        other = threading.Thread(
            target=policy_region(POLICY)(lambda: torch.func.vmap(torch.cos)(x))
        )
        other.start()
        other.join()
        with policy_region(Policy("O2", "bfloat16")):
            torch.func.vmap(torch.func.grad(lambda row: row.sum()))(x)
        assert taking_levels_off() == patched, "another region has closed, this one has not"
    assert taking_levels_off() == before


def test_an_operator_that_takes_functions_is_patched_while_it_runs() -> None:
    cond_module = sys.modules["torch._higher_order_ops.cond"]  # the attribute is the operator
    original, seen = cond_module.CondAutogradOp, []

    def chosen(x: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append((cond_module.CondAutogradOp is not original, (x + x).dtype))
        return (x.sin(),)

    def other(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.cos(),)

    x = torch.rand(3, requires_grad=True)
    with policy_region(POLICY):
        assert cond_module.CondAutogradOp is original
        (out,) = torch.ops.higher_order.cond(torch.tensor(True), chosen, other, (x,))
        assert cond_module.CondAutogradOp is original
    assert (True, torch.bfloat16) in seen
    out.sum().backward()
    torch.ops.higher_order.cond(torch.tensor(True), chosen, other, (x,))
    assert seen[-1] == (False, torch.float32), "outside of regions nothing is"
