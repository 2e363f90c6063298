"""Programs of JAX for a GPU or a TPU that is not here: read from the program that it lowers for it, and judged."""

from functools import partial
from typing import Any

import programs_there
import pytest
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
        plans, "_made", lambda policy, known: plans.Plan(policy, {**policy.rules, "softmax": Rule.LOW}, key=("broken",))
    )
    wrong, _ = read("lowered:cuda", "transformer", Policy("O1", "bfloat16"))
    assert "softmax ran under low, the policy says float32" in wrong
    assert "13 softmax, forward: exponential in bfloat16, should be float32" in wrong


def test_a_program_that_is_another_than_the_trace_says_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "converted", lambda to, dtype, args, kwargs: (args, kwargs))
    wrong, _ = read("lowered:tpu", "conv", Policy("O1", "float16"))
    assert "0 conv2d, forward: convolution in float32, should be float16" in wrong


def test_an_operation_that_forgets_the_policy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_there.forgotten_operation_is_caught(Subject("jax", "lowered:cuda"), monkeypatch, lambda: CONTEXT(None))


def test_a_device_that_is_not_here_has_decisions_and_no_numbers() -> None:
    programs_there.only_decisions_are_read("jax", "lowered:rocm")


def test_an_operation_is_read_under_the_users_lists_and_at_every_level_in_both_dtypes() -> None:
    programs_there.operation_is_read_under_lists_and_levels("jax", "lowered:cuda")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_would_compute_there_as_the_policy_says(device: str, op: str) -> None:
    programs_there.operation_is_as_the_policy_says("jax", device, op)


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_whose_rule_is_flipped_is_caught(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    flipped = {Rule.LOW: Rule.FP32, Rule.FP32: Rule.LOW}

    def spoilt(policy: Policy, known: Any) -> Plan:
        rule = policy.rules[op]
        return Plan(policy, {**policy.rules, op: flipped.get(rule, rule)}, key=("flipped", op, policy))

    monkeypatch.setattr(plans, "_made", spoilt)
    found = {result.policy: result.message for result in probed(Subject("jax", "lowered:cuda"), op)}
    assert "float32 inputs, forward: computed in float32, the policy says bfloat16" in found["allow bfloat16"]
    assert "low inputs, forward: " in found["deny bfloat16"]


@pytest.mark.parametrize("feed", ["float32", "low"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_result_of_the_right_dtype_that_was_computed_in_another_is_caught(op: str, feed: str) -> None:
    programs_there.result_of_another_precision_is_caught("jax", "lowered:cuda", op, feed)


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_gradients_that_are_computed_in_another_dtype_than_the_policys_are_caught(op: str) -> None:
    programs_there.gradients_of_another_precision_are_caught("jax", "lowered:cuda", op)


@pytest.mark.parametrize(
    ("op", "why"),
    [("unique", "what it gives depends on numbers"), ("linalg_matrix_sqrt", "there is no lowering of it for the platform")],
)
def test_an_operation_without_a_program_is_not_run_and_says_why(op: str, why: str) -> None:
    assert reasons(probed(Subject("jax", "lowered:cuda"), op)) == {("not run", why)}
