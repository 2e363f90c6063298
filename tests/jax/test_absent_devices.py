"""Programs of JAX for an absent GPU or TPU keep the policy.

The conformance suite reads each program that JAX lowers for the device, and judges it.
"""

from functools import partial
from typing import Any

import programs_there
import pytest
from programs_there import *  # noqa: F403
from programs_there import OPERATIONS, probed, reasons
from unamp_conformance.subjects import Subject
from unamp_jax import plans
from unamp_jax.composites import performer
from unamp_jax.state import CONTEXT, Plan

from unamp import Policy, Rule

DEVICES = ["lowered:cuda", "lowered:rocm", "lowered:tpu"]

read = partial(programs_there.read, "jax")


@pytest.mark.parametrize("device", DEVICES)
def test_programs_for_a_device_that_is_not_here_are_as_the_policy_says(device: str) -> None:
    wrong, program = read(device, "transformer", Policy("O1", "bfloat16"))
    assert not wrong
    assert "product: 1 linear: dot_general, bfloat16 -> bfloat16" in program
    assert "product: 1 linear, backward: dot_general, bfloat16 -> bfloat16" in program
    assert "transcendental: 13 softmax: exponential, float32 -> float32" in program
    assert "reduction: 0 layer_norm: reduce, float32 -> float32" in program


def test_norms_that_are_low_add_up_in_float32_what_was_low_when_it_came() -> None:
    wrong, program = read("lowered:cuda", "residual", Policy("O3", "float16"))
    assert not wrong
    assert "transcendental: 1 batch_norm: rsqrt, float32 -> float32" in program


def test_a_rule_that_is_another_than_the_policys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plans,
        "_made",
        lambda policy, known: plans.Plan(
            policy, {**policy.rules, "softmax": Rule.LOW}, key=("broken",)
        ),
    )
    wrong, _ = read("lowered:cuda", "transformer", Policy("O1", "bfloat16"))
    assert "softmax ran under low, the policy says float32" in wrong
    assert "13 softmax, forward: exponential in bfloat16, should be float32" in wrong


def test_a_program_that_is_another_than_the_trace_says_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performer, "converted", lambda to, dtype, args, kwargs: (args, kwargs))
    wrong, _ = read("lowered:tpu", "conv", Policy("O1", "float16"))
    assert "0 conv2d, forward: convolution in float32, should be float16" in wrong


def test_an_operation_that_forgets_the_policy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_there.forgotten_operation_is_caught(
        Subject("jax", "lowered:cuda"), monkeypatch, lambda: CONTEXT(None)
    )


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_whose_rule_is_flipped_is_caught(
    monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    flipped = {Rule.LOW: Rule.FP32, Rule.FP32: Rule.LOW}

    def spoilt(policy: Policy, known: Any) -> Plan:
        rule = policy.rules[op]
        return Plan(
            policy, {**policy.rules, op: flipped.get(rule, rule)}, key=("flipped", op, policy)
        )

    monkeypatch.setattr(plans, "_made", spoilt)
    found = {result.policy: result.message for result in probed(Subject("jax", "lowered:cuda"), op)}
    assert (
        "float32 inputs, forward: computed in float32, the policy says bfloat16"
        in found["allow bfloat16"]
    )
    assert "low inputs, forward: " in found["deny bfloat16"]


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("unique", "what it gives depends on numbers"),
        ("linalg_matrix_sqrt", "there is no lowering of it for the platform"),
    ],
)
def test_an_operation_without_a_program_is_not_run_and_says_why(op: str, why: str) -> None:
    assert reasons(probed(Subject("jax", "lowered:cuda"), op)) == {("not run", why)}
