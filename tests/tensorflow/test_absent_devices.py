"""Programs of TensorFlow for an absent GPU keep the policy.

The conformance suite reads each from graphs that are placed on the device, and judges it.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import programs_there
import pytest
import tensorflow as tf
from programs_there import *  # noqa: F403
from programs_there import OPERATIONS, probed, reasons
from unamp_conformance.check.absentchecks import check_program
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.subjects import Subject
from unamp_tensorflow import calls, composites, plans
from unamp_tensorflow.conformance import absent_devices
from unamp_tensorflow.plans import TensorFlowPlan
from unamp_tensorflow.state import thread

from unamp import Policy, Rule
from unamp.adapter.state import suspended
from unamp.policy import LEVELS

GPU = "placed:gpu"
DEVICES = [GPU]

read = partial(programs_there.read, "tensorflow", GPU)


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Rule], None]:
    """Return a function that gives an operation a rule other than the policy's."""

    def give(op: str, wrong: Rule) -> None:
        def spoilt(policy: Policy) -> TensorFlowPlan | None:
            return (
                TensorFlowPlan(policy, {**policy.rules, op: wrong}, key=("spoilt", op, wrong))
                if policy.active
                else None
            )

        monkeypatch.setattr(plans, "plan", spoilt)

    return give


@pytest.mark.parametrize(
    ("level", "dtype"), zip(LEVELS, itertools.cycle(["float16", "bfloat16"]), strict=False)
)
def test_graphs_for_a_gpu_that_is_not_here_are_as_the_policy_says(level: str, dtype: str) -> None:
    for network in ("transformer", "residual", "lstm"):
        wrong, _ = read(network, Policy(level, dtype))
        assert not wrong


def test_a_program_in_which_nothing_is_found_is_a_failure() -> None:
    subject = Subject("tensorflow", GPU)
    device = subject.absent_devices[GPU]

    def nothing(*given: Any) -> Any:
        return device.read(*given)._replace(there=[], cpu=[])

    vars(subject)["absent_devices"] = {GPU: replace(device, read=nothing)}
    wrong, _ = check_program(subject, NETWORKS["mlp"], Policy("O1", "bfloat16"))["decisions"]
    assert wrong == "nothing that computes was found in the program"


def test_products_are_low_forward_and_backward_and_a_softmax_is_not() -> None:
    _, program = read("transformer", Policy("O1", "bfloat16"))
    assert "product: 1 linear: MatMul, bfloat16 -> bfloat16" in program
    assert "product: 1 linear, backward: MatMul, bfloat16 -> bfloat16" in program
    assert "reduction: 13 softmax: Softmax, float32 -> float32" in program


def test_the_body_of_a_loop_is_read_forward_and_backward() -> None:
    _, program = read("lstm", Policy("O1", "float16"))
    assert "product: 2 lstm: MatMul, float16 -> float16" in program
    assert "product: 2 lstm, backward: MatMul, float16 -> float16" in program
    assert "transcendental: 2 lstm, backward: TanhGrad, float16 -> float16" in program


def test_a_rule_that_is_another_than_the_policys_is_caught(
    rule: Callable[[str, Rule], None],
) -> None:
    rule("softmax", Rule.LOW)
    wrong, _ = read("transformer", Policy("O1", "bfloat16"))
    assert "softmax ran under low, the policy says float32" in wrong
    assert "13 softmax, forward: Softmax in bfloat16, should be float32" in wrong


@pytest.fixture
def left_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Return a function that has unamp leave operations in graphs alone, under a condition."""

    def leave(where: Callable[[], bool]) -> None:
        real = calls.OpTypeAction.graph

        def graph(
            self: calls.OpTypeAction, original: Any, name: Any, keywords: dict[str, Any]
        ) -> Any:
            return (
                original(self._op_type.name, name, **keywords)
                if where()
                else real(self, original, name, keywords)
            )

        monkeypatch.setattr(calls.OpTypeAction, "graph", graph)
        monkeypatch.setattr(
            composites._performer,
            "is_left_alone",
            lambda *call: not tf.executing_eagerly() and where(),
        )

    return leave


def test_a_graph_that_is_another_than_the_trace_says_is_caught(
    left_alone: Callable[[Callable[[], bool]], None],
) -> None:
    left_alone(lambda: True)
    wrong, _ = read("transformer", Policy("O1", "float16"))
    assert "11 matmul, forward: BatchMatMulV2 in float32, should be float16" in wrong


def test_a_graph_that_is_another_on_the_cpu_is_caught(
    left_alone: Callable[[Callable[[], bool]], None],
) -> None:
    left_alone(lambda: "GPU" in tf.constant(0.0).device)
    wrong, _ = read("transformer", Policy("O1", "bfloat16"))
    assert "11 matmul: BatchMatMulV2, bfloat16 -> bfloat16: 0 on the device, 1 on the CPU" in wrong


def test_an_operation_that_forgets_the_policy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_there.forgotten_operation_is_caught(
        Subject("tensorflow", GPU), monkeypatch, lambda: suspended(thread)
    )


def test_what_computes_is_placed_on_the_gpu_and_beside_it_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed: list[set[str]] = []
    real = absent_devices.operations

    def note(graph: tf.Graph) -> object:
        placed.append(
            {
                node.device
                for node in graph.get_operations()
                if node.type in ("MatMul", "Softmax", "Mean", "AddV2")
            }
        )
        return real(graph)

    monkeypatch.setattr(absent_devices, "operations", note)
    read("transformer", Policy("O1", "bfloat16"))
    assert placed == [{"/device:GPU:0"}, {"/device:CPU:0"}]


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_whose_rule_is_flipped_is_caught(
    rule: Callable[[str, Rule], None], op: str
) -> None:
    rule(op, Rule.FP32)
    allowed = {result.policy: result.message for result in probed(Subject("tensorflow", GPU), op)}[
        "allow bfloat16"
    ]
    assert "float32 inputs, forward: computed in float32, the policy says bfloat16" in allowed
    rule(op, Rule.LOW)
    denied = {result.policy: result.message for result in probed(Subject("tensorflow", GPU), op)}[
        "deny bfloat16"
    ]
    assert "low inputs, forward: " in denied


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("isin", "its code looks at numbers, which a graph does not have"),
        ("gaussian_noise", "it makes a variable at each call"),
        ("ctc_loss", "it calls a function of TensorFlow 1's"),
        ("linalg_lu", "the framework itself refuses the call"),
        ("spectral_norm", "the adapter binds no function for spectral_norm"),
    ],
)
def test_an_operation_without_a_graph_is_not_run_and_says_why(op: str, why: str) -> None:
    assert reasons(probed(Subject("tensorflow", GPU), op)) == {("not run", why)}
