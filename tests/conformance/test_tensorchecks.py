"""The check of kinds of tensor passes a true declaration and fails a false one.

The tensors are torch's sparse ones.
"""

import pytest
import torch
from unamp_conformance.check.tensorchecks import check_tensors
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import planned
from unamp_conformance.subjects import Subject

import unamp
from unamp.adapter.tensor_kinds import TREATMENTS, TensorKind
from unamp.errors import NotExpressible
from unamp.policy import Policy

SUBJECT = Subject("torch", "cpu")
POLICIES = [Policy("O1", "bfloat16", allow=("mul",)), Policy("O1", "bfloat16", deny=("mul",))]


def made(dtype, device):
    values = torch.tensor([1.0, 1.3, 1.7, 2.1], dtype=getattr(torch, dtype), device=device)
    return torch.sparse_coo_tensor([[0, 1, 2, 2], [1, 0, 2, 3]], values, (3, 4))


def values(sparse):
    return sparse.coalesce().values().float().numpy()


def followed(sparse):
    policy = unamp.current_policy()
    if policy is None:
        return sparse * sparse
    chosen = getattr(torch, policy.dtype if policy.allow else "float32")
    with unamp.autocast(enabled=False):
        return sparse.to(chosen) * sparse.to(chosen)


def refused(sparse):
    if unamp.current_policy() is not None:
        raise NotExpressible("not for sparse tensors")
    return sparse * sparse


def left_alone(sparse):
    with unamp.autocast(enabled=False):
        return sparse * sparse


def relabelled(sparse):
    policy = unamp.current_policy()
    if policy is None:
        return sparse * sparse
    with unamp.autocast(enabled=False):
        if policy.allow:
            return (sparse * sparse).to(getattr(torch, policy.dtype))
        return (sparse * sparse).float()


def raising(sparse):
    if unamp.current_policy() is not None:
        raise RuntimeError("no kernel")
    return sparse * sparse


def refused_too_late(sparse):
    if unamp.current_policy() is not None:
        torch.ones(2) * 2.0
        raise NotExpressible("not for sparse tensors")
    return sparse * sparse


DONE = {"followed": followed, "refused": refused, "left alone": left_alone}


def found(call, declared, policy):
    kind = TensorKind(
        "sparse",
        made,
        {"mul": call},
        {"mul": declared},
        "a reason",
        values,
        lambda t: str(t.dtype)[6:],
    )
    return check_tensors(SUBJECT, kind, "mul", policy)


@pytest.mark.parametrize("policy", POLICIES, ids=["allow", "deny"])
@pytest.mark.parametrize("declared", TREATMENTS)
@pytest.mark.parametrize("done", TREATMENTS)
def test_a_treatment_is_held_against_the_declaration(done, declared, policy):
    result = found(DONE[done], declared, policy)
    if done != declared:
        assert (result.status, result.message) == (
            "failed",
            f"the adapter says {declared}; it is {done}",
        )
    else:
        assert result.status == ("refused" if done == "refused" else "passed")


@pytest.mark.parametrize("policy", POLICIES, ids=["allow", "deny"])
@pytest.mark.parametrize("declared", TREATMENTS)
def test_what_is_none_of_them_is_said(declared, policy):
    other = "computed in float32, and only the result was rounded"
    if policy.deny:
        other = "computed in bfloat16, and only the result was widened"
    assert found(relabelled, declared, policy).message.endswith(f"it is neither: {other}")
    assert found(raising, declared, policy).message.endswith(
        "it is raised: RuntimeError: no kernel"
    )


@pytest.mark.parametrize("policy", POLICIES, ids=["allow", "deny"])
def test_a_refusal_comes_before_anything_is_computed(policy):
    result = found(refused_too_late, "refused", policy)
    assert (result.status, result.message) == ("failed", "refused, but after it computed mul")


def test_a_dtype_that_a_kind_has_not_is_not_applicable():
    def none(dtype, device):
        if dtype == "bfloat16":
            raise TypeError("no bfloat16")
        return made(dtype, device)

    kind = TensorKind(
        "sparse",
        none,
        {"mul": followed},
        {"mul": "followed"},
        "",
        values,
        lambda t: str(t.dtype)[6:],
    )
    assert [check_tensors(SUBJECT, kind, "mul", policy).status for policy in POLICIES] == [
        "passed",
        "not applicable",
    ]


def test_a_run_walks_every_kind_and_operation(monkeypatch):
    kinds = [
        TensorKind(
            name,
            made,
            dict.fromkeys(ops, followed),
            dict.fromkeys(ops, "followed"),
            "",
            values,
            str,
        )
        for name, ops in (("sparse", ("mul", "exp")), ("ragged", ("mul",)))
    ]
    monkeypatch.setattr(type(SUBJECT.operations), "tensor_kinds", lambda self: kinds, raising=False)
    asked = [
        (item.way, item.subject, *item.policies)
        for item in planned(Subject("torch", "cpu"), Selection(checks=("tensors",)))
    ]
    policies = ("allow float16", "deny float16", "allow bfloat16", "deny bfloat16")
    assert asked == [
        ("sparse", "mul", *policies),
        ("sparse", "exp", *policies),
        ("ragged", "mul", *policies),
    ]
