"""The suite's checks of ways find each defect of an adapter in a way of running, and name it.

They run on PyTorch as it is and with defects.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from unamp_conformance.check.ways import check_way
from unamp_conformance.meta.mutation import forgetting_a_way
from unamp_conformance.run.plan import Selection, items
from unamp_conformance.run.worker import planned
from unamp_conformance.subjects import Subject

import unamp
from unamp import NotExpressible, Policy
from unamp.adapter import Way
from unamp.errors import AdapterError

pytestmark = pytest.mark.beside_kernels

torch_cpu = Subject("torch", "cpu")
LOW = Policy("O1", "bfloat16")

#: One way of each kind that takes a few milliseconds.
CHEAP = [
    "decorated function",
    "compile eager, region inside",
    "make_fx, region around",
    "export, region around",
    "checkpoint, region around",
    "associative_scan, region around",
    "func.grad, region inside",
    "DistributedDataParallel, region inside",
    "torch.autocast around the region",
    "jit.trace, region around",
    "vmap, region around",
]


def checked(subject: Subject, way: str, name: str = "mlp", policy: Policy = LOW) -> tuple[str, str]:
    found = check_way(subject, subject.ways[way], name, policy)
    return found.status, found.message


@pytest.mark.parametrize("way", CHEAP)
def test_an_adapter_that_forgets_a_way_is_found(way: str) -> None:
    assert checked(torch_cpu, way) == ("passed", "")
    status, said = checked(forgetting_a_way(torch_cpu, way), way)
    assert (status, said[:16]) == ("lost", "lost in silence:")
    status, said = checked(forgetting_a_way(torch_cpu, way, "float16"), way)
    assert status in ("lost", "failed"), said


@pytest.mark.parametrize("name", ["linear", "softmax"])
@pytest.mark.parametrize("way", ["make_fx, region around", "vmap, region around"])
def test_one_operation_tells(way: str, name: str) -> None:
    assert checked(torch_cpu, way, name)[0] == "passed"
    assert checked(forgetting_a_way(torch_cpu, way), way, name)[0] in ("lost", "failed")


def in_a_way(run: object, **promised: object) -> tuple[str, str]:
    found = check_way(torch_cpu, Way("other", "eager", run, **promised), "matmul", LOW)  # type: ignore[arg-type]
    return found.status, found.message


def refuse(*_: object) -> None:
    raise NotExpressible("no such way")


def eagerly(function, region, inputs):  # type: ignore[no-untyped-def]
    with region():
        return function(*inputs)


def late(function, region, inputs):  # type: ignore[no-untyped-def]
    eagerly(function, region, inputs)
    refuse()


def broken(*_: object) -> None:
    raise KeyError("lost key")


def test_a_refusal_is_said_before_and_comes_before_anything_is_computed() -> None:
    assert in_a_way(refuse, refused="cannot") == ("refused", "cannot")
    assert in_a_way(refuse, refused=lambda policy: f"not in {policy.dtype}") == (
        "refused",
        "not in bfloat16",
    )
    assert in_a_way(refuse) == (
        "failed",
        "refused, and the way does not say so: NotExpressible: no such way",
    )
    assert in_a_way(late, refused="cannot") == ("failed", "refused, but after it computed matmul")
    assert in_a_way(eagerly, refused="cannot") == (
        "failed",
        "the adapter says that it refuses this way, but it ran: cannot",
    )
    assert (
        in_a_way(broken)[1]
        == "raised, where a way is followed or refused by NotExpressible: KeyError: 'lost key'"
    )


def test_what_the_framework_cannot_do_is_shown_without_a_region() -> None:
    assert in_a_way(broken, upstream={"mat*": "why"}) == (
        "not applicable",
        "torch itself cannot: why",
    )
    assert in_a_way(eagerly, upstream={"*": "why"})[0] == "failed"
    assert in_a_way(eagerly, upstream={"softmax": "why"}) == ("passed", "")
    assert in_a_way(eagerly, absent="no compiler") == ("not run", "no compiler")


def test_a_ban_that_a_way_forgets_is_lost() -> None:
    way = "make_fx, region around"
    banning = Policy("O1", "float16", preset="torch-cuda")
    assert checked(torch_cpu, way, "binary_cross_entropy", banning) == ("passed", "")
    status, said = checked(forgetting_a_way(torch_cpu, way), way, "binary_cross_entropy", banning)
    assert status == "lost"
    assert said.startswith("lost in silence: it ran, and eagerly the policy bans it")


def test_a_way_says_what_it_is() -> None:
    for wrong in ({"kind": "sideways"}, {"equal": "nearly"}, {"name": "a/b"}, {"run": None}):
        with pytest.raises(AdapterError):
            replace(Way("right", "eager", eagerly), **wrong)  # type: ignore[arg-type]
    twice = Subject("torch", "cpu")
    vars(twice)["operations"] = type(
        "Doubled", (), {"ways": lambda self: [Way("one", "eager", eagerly)] * 2}
    )()
    with pytest.raises(AdapterError, match="two ways have the name 'one'"):
        _ = twice.ways


def test_a_quick_run_meets_every_level_in_every_way_and_a_full_one_everything() -> None:
    quick = list(
        items(Selection(checks=("ways",)), (*"linear matmul add".split(),), ("a", "b"), ("b",))
    )
    met = {
        (way, *name.split()[:2]) for item in quick for name in item.policies for way in [item.way]
    }
    assert len({cell for cell in met if cell[0] == "a"}) == 8
    assert len({cell for cell in met if cell[0] == "b"}) == 1
    full = list(items(Selection(checks=("ways",), full=True), ("linear",), ("a",)))
    assert len(full) == 9
    assert all(len(item.policies) == 10 for item in full)
    named = {item.way for item in planned(torch_cpu, Selection(ways=("jit*",)))}
    assert named
    assert all(way.startswith("jit") for way in named)


def test_a_region_made_while_calls_are_recorded_is_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with unamp.autocast("cpu"):
            return x @ x

    with pytest.raises(NotExpressible, match="symbolic_trace records no region"):
        torch.fx.symbolic_trace(inside)
    graph = torch.fx.symbolic_trace(lambda x: x @ x)
    x = torch.rand(4, 4)
    assert graph(x).dtype is torch.float32
    with unamp.autocast("cpu"):
        assert graph(x).dtype is torch.bfloat16


@pytest.mark.parametrize("level", ["OD", "O2"])
def test_rules_do_not_reach_to_where_loops_stack_results(level: str) -> None:
    from torch._higher_order_ops.map import map as map_over

    x = torch.rand(3, 4, 4, requires_grad=True)
    with unamp.autocast("cpu", level=level, allow=("mm",), deny=("exp",)):
        assert map_over(lambda row: row @ row, x).dtype is torch.bfloat16
        assert map_over(lambda row: row.exp(), x).dtype is torch.float32


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_an_export_of_pytorchs_own_lists_leaves_the_rest_alone(level: str) -> None:
    class Added(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    x = torch.rand(4)
    with unamp.autocast("cpu", level=level, preset="native"):
        exported = torch.export.export(Added(), (x,))
        assert (x + x).dtype is torch.float32
    assert exported.module()(x).dtype is torch.float32
