"""What JAX would run on a GPU or a TPU that is not here: read from the program that it lowers for it, and judged."""

import pytest
from unamp_conformance.check.absentchecks import check_program
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject
from unamp_jax import plans
from unamp_jax.composites import performer
from unamp_jax.state import CONTEXT

from unamp import Policy, Rule

DEVICES = ["lowered:cuda", "lowered:rocm", "lowered:tpu"]


def read(device: str, network: str, policy: Policy) -> tuple[str, list[str]]:
    wrong, details = check_program(Subject("jax", device), NETWORKS[network], policy)["decisions"]
    return wrong, details["trace"]


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
    subject = Subject("jax", "lowered:cuda")
    known = type(subject.operations).__getitem__

    def forgetful(self: object, op: str) -> object:
        function = known(self, op)  # type: ignore[arg-type]

        def outside(*args: object, **kw: object) -> object:
            with CONTEXT(None):
                return function(*args, **kw)

        return outside if op == "linear" else function

    monkeypatch.setattr(type(subject.operations), "__getitem__", forgetful)
    wrong, _ = check_program(subject, NETWORKS["mlp"], Policy("O1", "float16"))["decisions"]
    assert "not in the trace: 0 linear" in wrong


def test_a_device_that_is_not_here_has_decisions_and_no_numbers() -> None:
    subject = Subject("jax", "lowered:rocm")
    items = planned(subject, Selection(networks=("conv",), levels=("O1",), dtypes=("float16",)))
    results = [result for item in items for result in perform(subject, item)]
    assert {(result.check, result.status, result.device) for result in results} == {("decisions", "passed", "lowered:rocm")}
    assert not any("error" in result.details for result in results)
    assert not planned(subject, Selection(checks=("outputs", "probe", "ways")))
