"""The kernels that are written out do what the general ones do, call for call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from unamp_torch import calls, usual_calls
from unamp_torch.listing import Operator, operators
from unamp_torch.state import FEW, MANY, thread

from unamp import Policy, policy_region

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16

x, y = torch.rand(3, 3), torch.rand(3, 3)
low, parameter = x.to(BF16), nn.Parameter(torch.rand(3, 3))
other_low, double, whole = y.to(F16), x.to(F64), torch.ones(3, 3, dtype=torch.int64)


class Subclass(torch.Tensor):
    pass


#: Operators, each with calls: what the dispatcher hands over, by position and keyword.
CALLS: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    "aten::add.Tensor": (
        *(((a, b), {}) for a in (x, low, other_low, double, whole, parameter) for b in (y, low, parameter, whole)),
        ((x, y), {"alpha": 2}),
        ((x, 2.0), {}),
        ((x.as_subclass(Subclass), y), {}),
        ((x, y.as_subclass(Subclass)), {}),
        ((x.to("meta"), y.to("meta")), {}),
        ((x, torch.rand(2)), {}),
    ),
    "aten::exp": (((x,), {}), ((low,), {}), ((double,), {}), ((parameter,), {})),
    "aten::softmax.int": (((low, -1), {}), ((low, -1, F64), {}), ((low, -1), {"dtype": F64}), ((x, 0, None), {})),
    "aten::linear": (((x, y), {}), ((x, parameter, None), {}), ((low, y, torch.rand(3)), {}), ((x, y, low[0]), {})),
    "aten::addcmul": (((x, y, low), {}), ((x, y, y), {"value": 2})),
}


def named(name: str) -> Operator:
    op = name.removeprefix("aten::").split(".")[0]
    return next(operator for operator in operators(op) if operator.name == name)


def outcome(kernel: Callable[..., Any], operator: Operator, args: Any, kwargs: Any) -> Any:
    keyset = (torch._C._dispatch_keys(args[0]),) if operator.composite else ()
    try:
        out = kernel(*keyset, *args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    grad_fn = None if out.grad_fn is None else out.grad_fn.name()
    return type(out), out.dtype, out.device, out.requires_grad, grad_fn, None if out.is_meta else out.tolist()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "policy",
    [
        Policy("O1", "bfloat16", allow=("add", "exp", "linear", "addcmul"), deny="softmax"),
        Policy("O1", "bfloat16", allow="softmax", deny=("add", "exp", "linear", "addcmul"), cache=False),
        Policy("O2", "float16"),
    ],
    ids=repr,
)
def test_a_call_comes_to_the_same(policy: Policy, name: str) -> None:
    operator = named(name)
    with policy_region(policy):
        assert thread.plan is not None
        own_key = thread.plan.key.key
        assert own_key in (FEW.key, MANY.key)
        # A linear layer in the low dtype is left to native autocast.
        assert name in thread.plan.casts_on_cpu or name == "aten::linear"
        general, usual = calls.kernel_of(operator, own_key), usual_calls.kernel_of(operator, own_key)
        assert usual.__code__ is not general.__code__
        for args, kwargs in CALLS[name]:
            found = outcome(usual, operator, args, kwargs)
            assert found == outcome(general, operator, args, kwargs), (args, kwargs)
            assert not torch._C._dispatch_tls_is_dispatch_key_excluded(own_key), "a key stays excluded"
            assert torch.is_autocast_enabled("cpu"), "a key stays excluded"


def test_what_cannot_be_written_out_is_left_to_the_general_kernel() -> None:
    for name in ("aten::cat", "aten::embedding", "aten::layer_norm", "aten::lstm.input"):
        operator = named(name)
        usual, general = (module.kernel_of(operator, FEW.key) for module in (usual_calls, calls))
        assert usual.__code__ is general.__code__, name


def test_a_parameter_is_cast_once() -> None:
    with policy_region(Policy("O1", "bfloat16", allow="add")):
        assert thread.plan is not None
        kernel = usual_calls.kernel_of(named("aten::add.Tensor"), thread.plan.key.key)
        thread.weights = {}
        kernel(parameter, x)
        ((_, _, first),) = thread.weights.values()
        kernel(x, parameter)
        assert next(iter(thread.weights.values()))[2] is first
        thread.weights = None


def test_what_has_no_low_kernel_is_found_out_and_emulated() -> None:
    operator = named("aten::add.Tensor").calling(
        lambda a, b: torch.add(a, b) if a.dtype is F32 else exec("raise RuntimeError(\"not implemented for 'BFloat16'\")")
    )
    operator.no_kernel = set()
    with policy_region(Policy("O1", "bfloat16", allow="add")):
        assert thread.plan is not None
        kernel = usual_calls.kernel_of(operator, thread.plan.key.key)
        for _ in range(2):
            assert torch.equal(kernel(x, y), (x.to(BF16).float() + y.to(BF16).float()).to(BF16))
            assert operator.no_kernel == {("cpu", BF16)}
