"""The answers of `unamp.explain` about torch agree with what torch then does."""

from __future__ import annotations

import pytest
import torch
from elsewhere import ended_fork, forked

import unamp
from unamp import Policy, Rule
from unamp.adapter import How
from unamp.adapter.registry import adapter_for


def how(policy: Policy, device: str) -> dict[str, How]:
    return {op: e.how["torch", device] for op, e in unamp.explain(policy, "torch", device).items()}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torchs_own_amp_is_native_throughout(device: str, dtype: str) -> None:
    found = how(Policy("O1", dtype, preset="native"), device)
    assert set(found.values()) == {How.NATIVE, How.ABSENT}


def test_on_a_gpu_the_default_costs_nothing_on_torchs_own_lists() -> None:
    explained = unamp.explain(Policy("O1", "float16"), "torch", "gpu")
    lists = unamp.explain(Policy("O1", "float16", preset="torch-cuda"), "torch", "gpu")
    for op in "matmul mm linear conv2d softmax layer_norm exp nll_loss add relu cat".split():
        assert explained[op].how["torch", "gpu"] is How.NATIVE, op
        assert lists[op].how["torch", "gpu"] is How.NATIVE, op


def test_on_a_cpu_torchs_cpu_lists_cost_nothing() -> None:
    found = how(Policy("O1", "bfloat16", preset="torch-cpu"), "cpu")
    for op in (
        "matmul mm linear conv2d mse_loss softmax layer_norm exp add relu batch_norm"
    ).split():
        assert found[op] is How.NATIVE, op


def test_a_custom_list_intercepts_its_operations() -> None:
    usual = how(Policy("O1", "bfloat16", preset="torch-cpu"), "cpu")
    found = how(
        Policy("O1", "bfloat16", preset="torch-cpu", allow=("add", "exp"), deny="mm"), "cpu"
    )
    # Functions that torch makes of these are intercepted as well, so that each keeps its own rule.
    assert {op for op in found if found[op] is not usual[op]} >= {"add", "exp", "mm"}
    for op in ("linear", "conv2d", "softmax", "relu", "log", "mul", "layer_norm", "batch_norm"):
        assert found[op] is usual[op], op
    assert found["add"] is found["exp"] is found["mm"] is How.INTERCEPTED


def test_what_has_no_low_kernel_is_emulated() -> None:
    found = how(Policy("O3", "bfloat16"), "cpu")
    for op in ("cdist", "linalg_inv", "linalg_svd", "fft_fft", "avg_pool3d"):
        assert found[op] is How.EMULATED, op
    assert found["mm"] is not How.EMULATED


def test_what_torch_does_not_have_is_absent() -> None:
    found = how(Policy(), "cpu")
    names = adapter_for("torch").operations().names()
    for op, operation in unamp.vocabulary().items():
        if "torch" not in operation.spellings:
            assert found[op] is How.ABSENT, op
            assert op not in names
    for op in names:
        assert found[op] is not How.ABSENT, f"{op} can be called"
    assert How.ABSENT in found.values()


@pytest.mark.parametrize("policy", [Policy("O0"), Policy(enabled=False)], ids=repr)
def test_nothing_is_intercepted_where_nothing_is_in_force(policy: Policy) -> None:
    assert set(how(policy, "cpu").values()) == {How.NATIVE, How.ABSENT}


def test_rules_and_origins_are_the_policys() -> None:
    policy = Policy("O1", "bfloat16", allow=torch.add, deny="linear")
    found = unamp.explain(policy, "torch", "cpu")
    assert (found["add"].rule, found["add"].origin) == (Rule.LOW, "your allow list")
    assert (found["lstm"].rule, found["lstm"].origin) == (
        Rule.FP32,
        "your deny list: it computes with linear",
    )
    assert {op: e.rule for op, e in found.items()} == dict(policy.rules)


@pytest.mark.either_kernels
def test_native_means_that_no_kernel_of_ours_acts() -> None:
    # A profile cannot see C++ kernels; they do the same.
    assert forked("torch", WATCHED, UNAMP_TORCH_COMPILED="0").strip() == "fine"


WATCHED = """
import sys, torch, unamp
from unamp_torch import calls

CAST = torch.Tensor.to.__name__
ACTIONS = (calls.low, calls.low_widened, calls.emulated, calls.in_float32, calls.in_widest, calls.untouched)
policy = unamp.Policy("O1", "bfloat16", preset="torch-cpu", allow="exp")
found = {op: e.how["torch", "cpu"] for op, e in unamp.explain(policy, "torch", "cpu").items()}
x = torch.rand(4, 4)
calls = {
    "mm": lambda: torch.mm(x, x),
    "add": lambda: x + x,
    "linear": lambda: torch.nn.functional.linear(x, x),
    "exp": x.exp,
}
called = []

def profile(frame, event, argument):
    # A kernel that another policy of this process needed only passes the call on.
    if event == "call" and frame.f_code in {action.__code__ for action in ACTIONS}:
        called.append(frame.f_code.co_name)
    elif event == "c_call" and argument.__name__ == CAST:
        called.append(CAST)

for op, call in calls.items():
    called.clear()
    with unamp.policy_region(policy):
        call()
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
    assert bool(called) is (found[op] is not unamp.adapter.How.NATIVE), (op, called)
assert {found[op].name for op in calls} == {"NATIVE", "INTERCEPTED"}
print("fine")
"""  # noqa: E501


@pytest.mark.beside_kernels
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE_BF16"])
def test_a_dtype_for_which_the_cpu_has_no_instructions_is_said_to_be_slow(isa: str) -> None:
    code = """
import torch, unamp
from unamp.adapter.registry import adapter_for
for dtype in ("float16", "bfloat16"):
    print(adapter_for("torch").slowdown("cpu", dtype) > 10, adapter_for("torch").slowdown("gpu", dtype))
with unamp.autocast("cpu", "float16"):
    torch.rand(2, 2)
"""  # noqa: E501
    done = ended_fork("torch", code, ONEDNN_MAX_CPU_ISA=isa)
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "True 1.0"
    assert isa != "AVX2" or lines[1] == "True 1.0"
    assert (
        "AmpWarning: on a CPU torch is about 28 times slower in float16 than in float32"
        in done.stderr
    )
