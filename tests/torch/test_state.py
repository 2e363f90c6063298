"""Regions leave native autocast's state and the patched attributes as they were.

torch's own regions may be around them and inside.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elsewhere import forked
from torch import nn
from unamp_torch import patches

import unamp
from unamp import Policy, Rule, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

POLICIES = [
    Policy("O1", "bfloat16"),
    Policy("O1", "float16", allow=("add", "exp"), deny="mm"),
    Policy("O1", "bfloat16", preset="native"),
    Policy("O1", "float16", preset="torch-cpu", cache=False),
    Policy("O3", "bfloat16", widen_results=True),
    Policy(enabled=False),
    Policy("O0"),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)

x = torch.rand(4, 4)


def work() -> None:
    layer = nn.Linear(4, 4)
    out = layer(x + x).exp().float().sum()
    out.backward()


@each_policy
def test_native_state_is_as_before(policy: Policy, native_state: Callable[[], Any]) -> None:
    before = native_state()
    for _ in range(3):
        with policy_region(policy):
            work()
            with policy_region(POLICIES[1]):
                work()
                with policy_region(policy):
                    work()
        assert native_state() == before


@each_policy
def test_native_state_is_as_before_an_inner_region(
    policy: Policy, native_state: Callable[[], Any]
) -> None:
    for outer in POLICIES:
        with policy_region(outer):
            before = native_state()
            with policy_region(policy):
                work()
            assert native_state() == before


@each_policy
def test_native_state_is_as_before_an_exception(
    policy: Policy, native_state: Callable[[], Any]
) -> None:
    before = native_state()

    def fails() -> None:
        with policy_region(policy), policy_region(POLICIES[1]):
            work()
            torch.mm(x, torch.rand(3, 3))

    with pytest.raises(RuntimeError, match="shape"):
        fails()
    with pytest.raises(ZeroDivisionError), policy_region(policy):
        1 / 0  # noqa: B018
    assert native_state() == before
    assert unamp.current_policy() is None
    assert (x @ x).dtype == (x + x).dtype == F32


@each_policy
def test_an_exception_in_a_kernel_leaves_the_region_working(policy: Policy) -> None:
    def results() -> list[torch.dtype]:
        return [(x @ x).dtype, (x + x).dtype, x.exp().dtype, x.bfloat16().exp().dtype]

    with policy_region(policy):
        before = results()
        for bad in (
            lambda: torch.mm(x, torch.rand(3, 3)),
            lambda: x + torch.rand(3),
            lambda: torch.cat([x, torch.rand(3)]),
        ):
            with pytest.raises(RuntimeError):
                bad()
        assert results() == before
    assert results() == [F32, F32, F32, BF16]


@each_policy
def test_exceptions_in_backward_put_the_policy_back(
    policy: Policy, native_state: Callable[[], Any]
) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with policy_region(policy):
        inside = native_state()
        out = Fails.apply(x.clone().requires_grad_())
        with pytest.raises(ZeroDivisionError):
            out.sum().backward()
        assert native_state() == inside
        assert unamp.current_policy() == policy
        expected = {Rule.LOW: getattr(torch, policy.dtype), Rule.FP32: F32, Rule.UNTOUCHED: F32}
        stated = policy.delegated("torch", "cpu")
        if not policy.widen_results:
            assert torch.mm(x, x).dtype == expected[stated.decide("mm")]


def test_hooks_are_in_place_inside_and_the_originals_outside(
    attributes: Callable[[], dict[str, Any]],
) -> None:
    before = attributes()
    assert before, "no hooks to look at"
    with policy_region(POLICIES[1]):
        inside = attributes()
        with policy_region(POLICIES[0]):
            assert attributes() == inside
        assert attributes() == inside
    needed = {f"{hook.module}.{hook.name}" for hook in patches.HOOKS if hook.awaited() is None}
    assert {name for name in before if inside[name] is not before[name]} == needed
    after = attributes()
    assert all(after[name] is before[name] for name in before)


def test_hooks_of_modules_imported_inside_a_region_are_taken_out_too() -> None:
    code = """
import sys, torch, unamp
from unamp_torch.patches import HOOKS
finders = list(sys.meta_path)
with unamp.autocast("cpu", allow="add"):
    late = [h for h in HOOKS if h.module not in sys.modules]
    assert late, "nothing is imported late"
    import torch.export, torch._dynamo, torch._functorch._aot_autograd.autograd_cache
    patched = {h: getattr(sys.modules[h.module], h.name) for h in late if h.module in sys.modules}
    assert patched
assert sys.meta_path == finders
for h, inside in patched.items():
    outside = getattr(sys.modules[h.module], h.name)
    assert outside is not inside and getattr(inside, "__wrapped__", outside) is outside, h
print("fine")
"""
    assert forked("torch", code).strip() == "fine"


def test_somebody_elses_patch_on_top_survives() -> None:
    original = torch.autograd._engine_run_backward
    calls = []
    with policy_region(POLICIES[1]):
        ours = torch.autograd._engine_run_backward

        def theirs(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return ours(*args, **kwargs)

        torch.autograd._engine_run_backward = theirs
    try:
        assert torch.autograd._engine_run_backward is theirs
        t = torch.rand(2, requires_grad=True)
        torch.autograd.grad((t * 2).sum(), t)
        with policy_region(POLICIES[1]):
            torch.autograd.grad((t * 2).sum(), t)
    finally:
        torch.autograd._engine_run_backward = original
    assert len(calls) >= 1


# --- together with torch's own regions ------------------------------------------------------------


@each_policy
@pytest.mark.parametrize("enabled", [True, False])
def test_inside_torchs_own_autocast(
    policy: Policy, enabled: bool, native_state: Callable[[], Any]
) -> None:
    with torch.autocast("cpu", dtype=F16, enabled=enabled, cache_enabled=False):
        before = native_state()
        outside = (x @ x).dtype, (x + x).dtype
        with policy_region(policy):
            inside = torch.mm(x, x).dtype
        assert native_state() == before
        assert ((x @ x).dtype, (x + x).dtype) == outside == ((F16 if enabled else F32), F32)
    stated = policy.delegated("torch", "cpu")
    rule = stated.decide("mm")
    assert inside == (
        getattr(torch, policy.dtype) if rule is Rule.LOW and not policy.widen_results else F32
    )


def test_torchs_own_autocast_inside_a_region_is_respected(native_state: Callable[[], Any]) -> None:
    policy = Policy("O1", "bfloat16", allow=("add", "exp"), deny="mm")

    def dtypes() -> list[torch.dtype]:
        return [
            (x + x).dtype,
            x.exp().dtype,
            torch.mm(x, x).dtype,
            torch.nn.functional.linear(x, x).dtype,
        ]

    with policy_region(policy):
        before = native_state()
        assert dtypes() == [BF16, BF16, F32, BF16]
        with torch.autocast("cpu", enabled=False):
            assert dtypes() == [F32] * 4
            with policy_region(policy):
                assert dtypes() == [BF16, BF16, F32, BF16]
            assert dtypes() == [F32] * 4
        assert native_state() == before
        assert dtypes() == [BF16, BF16, F32, BF16]
    assert dtypes() == [F32] * 4


def test_no_grad_and_default_dtype_are_not_ours() -> None:
    with torch.no_grad(), unamp.autocast("cpu"):
        assert not torch.is_grad_enabled()
    with unamp.autocast("cpu"):
        assert torch.is_grad_enabled()
        assert torch.rand(1).dtype == torch.get_default_dtype() == F32


def test_torchs_questions_are_answered_inside() -> None:
    with unamp.autocast("cpu", "float16", cache_enabled=False):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == F16
        assert not torch.is_autocast_cache_enabled()
        with unamp.autocast("cpu", enabled=False):
            assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: unamp.autocast("cpu", allow="no_such_operation"), "no_such_operation"),
        (lambda: unamp.autocast("cpu", allow="add", deny=torch.add), "add"),
        (lambda: unamp.autocast("cpu", level="O4"), "O0, OD, O1, O2, O3"),
        (lambda: unamp.autocast("cpu", torch.float64), "bfloat16"),
        (lambda: unamp.autocast("cpu", torch.int8), "bfloat16"),
        (lambda: unamp.autocast("cpu", preset="nothing"), "torch-cuda"),
        (lambda: unamp.autocast("tpu"), "cpu"),
        (lambda: unamp.autocast("cpu", framework="mxnet"), "torch"),
        (lambda: unamp.autocast("cpu", allow=x), "Tensor"),
        (lambda: unamp.policy_region(x), "Policy"),
        (lambda: unamp.autocast(x), "device_type"),
        (lambda: unamp.autocast("cpu", preset="native", allow="add"), "native"),
    ],
)
def test_bad_input_is_one_clear_error_and_changes_nothing(
    make: Callable[[], Any],
    says: str,
    native_state: Callable[[], Any],
    attributes: Callable[[], Any],
) -> None:
    with unamp.autocast("cpu"):
        before, patched = native_state(), attributes()
        with pytest.raises((ValueError, TypeError), match=says):
            make()
        assert (native_state(), attributes()) == (before, patched)
        assert (x @ x).dtype == BF16


# --- a torch that lacks what unamp needs ----------------------------------------------------------


def test_another_version_is_refused_before_anything_of_it_is_looked_for():
    script = """
import sys, torch
torch.__version__ = "2.6.0"
sys.modules["torch.compiler"] = None  # what the adapter imports from it, that version does not have
import unamp
try:
    unamp.autocast(dtype="bfloat16").__enter__()
except unamp.FrameworkNotSupported as error:
    print(error)
"""
    said = forked("torch", script)
    assert said.startswith(
        "torch 2.6.0 is installed; unamp's adapter works with torch >=2.10,<3: "
        "older ones keep no float32"
    )


@each_policy
def test_a_module_that_holds_a_region_is_copied_and_pickled(policy: Policy) -> None:
    module = nn.Linear(4, 4)
    module.region = policy_region(policy)  # type: ignore[assignment]
    with module.region:
        expected = module(x)
    pickled = pickle.dumps(module)
    assert b"unamp_torch" not in pickled
    for again in (copy.deepcopy(module), pickle.loads(pickled)):
        assert again.region.policy == policy
        with again.region:
            found = again(x)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


WITH_A_FUNCTION_THAT_CANNOT_BE_REPLACED = """
import functools, sys, torch, unamp
from unamp_torch import patches
F = torch.nn.functional
def closing(function):
    def closed(*args, **kwargs):
        return function(*args, **kwargs)
    return closed
F.lp_pool2d, F.lp_pool1d, first = functools.partial(F.lp_pool2d), closing(F.lp_pool1d), F.gaussian_nll_loss.__code__
def standing():
    return [getattr(sys.modules[h.module], h.name) for h in patches.HOOKS if h.module in sys.modules]
before = standing()
try:
    with unamp.autocast("cpu", dtype="bfloat16", allow=["gaussian_nll_loss", "lp_pool2d"]):
        print("entered")
except AttributeError as error:
    print("refused", "__code__" in str(error))
print(standing() == before, F.gaussian_nll_loss.__code__ is first, torch.is_autocast_enabled("cpu"), unamp.current_policy())
with unamp.autocast("cpu", dtype="bfloat16", allow=["gaussian_nll_loss"]):
    x = torch.ones(2, 2)
    print(standing() == before, F.gaussian_nll_loss(x, x, x).dtype)
print(standing() == before, F.gaussian_nll_loss.__code__ is first)
with unamp.autocast("cpu", dtype="bfloat16", allow=["lp_pool1d"]):
    print("closed", F.lp_pool1d(torch.ones(1, 4, 4), 2.0, 2).dtype)
print(F.lp_pool1d(torch.ones(1, 4, 4), 2.0, 2).dtype)
"""  # noqa: E501


def test_a_region_that_cannot_replace_a_function_leaves_nothing_behind() -> None:
    assert forked("torch", WITH_A_FUNCTION_THAT_CANNOT_BE_REPLACED).splitlines() == [
        "refused True",
        "True True False None",
        "False torch.bfloat16",
        "True True",
        "closed torch.bfloat16",
        "torch.float32",
    ]


PRIVATE_NAMES = (
    "torch._C._dispatch_get_all_op_names",
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
    "torch.autograd._engine_run_backward",
    "torch._functorch.vmap._vmap_decrement_nesting",
    "torch.export._trace._export",  # of a module that is not always imported
    "torch.utils.checkpoint.CheckpointFunction",
)

WITHOUT_PRIVATE_NAMES = """
import os, sys, torch, unamp, torch.export._trace
for place in sys.argv[1:]:
    if not os.fork():  # for each name, unamp meets PyTorch for the first time
        owner, _, name = place.rpartition(".")
        delattr(eval(owner), name)
        try:
            unamp.autocast("cpu", dtype="bfloat16").__enter__()
        except unamp.FrameworkNotSupported as error:
            print(error)
        gone = not hasattr(eval(owner), name)
        print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype, torch.is_autocast_enabled("cpu"), gone, unamp.current_policy(), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""  # noqa: E501


# the names are looked for before either kernels are
@pytest.mark.beside_kernels
def test_a_private_name_that_is_gone_is_told_before_anything_is_computed() -> None:
    said = forked("torch", WITHOUT_PRIVATE_NAMES, *PRIVATE_NAMES).splitlines()
    assert said[::2] == [
        f"torch {torch.__version__} has no {name}, which unamp needs" for name in PRIVATE_NAMES
    ]
    assert said[1::2] == ["torch.float32 False True None"] * len(PRIVATE_NAMES)


@pytest.mark.either_kernels
@pytest.mark.parametrize(
    ("setter", "instead", "operation"),
    [
        ("included", "lambda key, on: None", "torch.softmax"),
        (
            "excluded",
            "lambda key, on: None if 'Autocast' in str(key) else original(key, on)",
            "torch.matmul",
        ),
    ],
)
def test_a_torch_in_which_regions_have_no_effect_is_refused(
    setter: str, instead: str, operation: str
) -> None:
    script = f"""
import torch
original = torch._C._dispatch_tls_set_dispatch_key_{setter}
torch._C._dispatch_tls_set_dispatch_key_{setter} = {instead}
import unamp
try:
    unamp.autocast("cpu", dtype="bfloat16").__enter__()
except unamp.FrameworkNotSupported as error:
    print(error)
print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
"""
    refusal, dtype = forked("torch", script, UNAMP_TORCH_COMPILED="0").splitlines()
    assert refusal.startswith(f"torch {torch.__version__} does not ask ")
    assert f"for {operation} in a region" in refusal
    assert dtype == "torch.float32"
