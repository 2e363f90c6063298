"""Rules reach inside the operators that take functions, as if the functions were called.

PyTorch keeps these operators (`cond`, `while_loop`, `scan`, `map`) in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from elsewhere import forked
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_over
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention

import unamp
from unamp import Policy, policy_region

POLICIES = [
    Policy("O1", "bfloat16"),
    Policy("O1", "bfloat16", allow=("add", "exp"), deny="mm"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16", preset="native"),
    Policy("O2", "float16"),
    Policy("OD", "bfloat16"),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)

x, w = torch.rand(4, 4), torch.rand(4, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def chosen(x: Tensor, w: Tensor) -> Tensor:
    return (torch.mm(x, w) + x).exp().float()


def other(x: Tensor, w: Tensor) -> Tensor:
    return (x - w).float()


def with_cond(x: Tensor, w: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, chosen, other, (x, w))
    return found


def with_while_loop(x: Tensor, w: Tensor) -> Tensor:
    n = torch.tensor(0)
    found: Tensor = torch.while_loop(
        lambda n, x, w: n < 3, lambda n, x, w: (n + 1, (x @ w).float(), w.clone()), (n, x, w)
    )[1]
    return found


def initial(x: Tensor) -> Tensor:
    """Return the first carry, which has a gradient where the input has one.

    Else PyTorch before 2.13 loses the gradients of all later carries, in no region too.
    """
    return torch.zeros(4, requires_grad=x.requires_grad)


def with_scan(x: Tensor, w: Tensor) -> Any:
    return scan(lambda carry, row: ((carry + row @ w).float(), row.exp()), initial(x), x)


def scanned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    carry, rows = initial(x), []
    for row in x:
        carry = (carry + row @ w).float()
        rows.append(row.exp())
    return carry, torch.stack(rows)


#: Each operator, and the same computation in plain Python.
WRITTEN_OUT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cond": (with_cond, chosen),
    "while_loop": (with_while_loop, lambda x, w: (((x @ w).float() @ w).float() @ w).float()),
    "scan": (with_scan, scanned),
    "map": (
        lambda x, w: map_over(lambda row: (row @ w).exp(), x),
        lambda x, w: torch.stack([(row @ w).exp() for row in x]),
    ),
}


def same(a: Any, b: Any) -> bool:
    left, right = ((t,) if isinstance(t, Tensor) else t for t in (a, b))
    return len(left) == len(right) and all(
        p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("op", ["cond", "while_loop", "scan", "map"])
@each_policy
def test_rules_reach_into_functions(op: str, policy: Policy) -> None:
    run, written_out = WRITTEN_OUT[op]
    with policy_region(policy):
        found, expected = run(x, w), written_out(x, w)
    assert same(found, expected)


@pytest.mark.parametrize("op", ["cond", "while_loop", "scan", "map"])
@each_policy
def test_gradients_are_those_of_what_is_written_out(op: str, policy: Policy) -> None:
    def gradients(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        with policy_region(
            policy.replace(cache=False)
        ):  # the plain Python would sum the gradients of a cached cast's uses in low
            out = function(*leaves)
        torch.autograd.backward(
            [t.float().sum() for t in ((out,) if isinstance(out, Tensor) else out)]
        )
        return tuple(leaf.grad for leaf in leaves)  # type: ignore[misc]

    found, expected = gradients(WRITTEN_OUT[op][0]), gradients(WRITTEN_OUT[op][1])
    if op != "scan":
        assert same(found, expected)
        return
    # `scan` keeps and recomputes other values than the plain Python: one rounding apart.
    unit = torch.finfo(getattr(torch, policy.dtype)).eps
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a, b, rtol=unit, atol=unit * float(b.abs().max()))


@pytest.mark.filterwarnings("ignore:.*flex_attention.*")
def test_flex_attention() -> None:
    q = torch.rand(1, 2, 16, 8)
    with torch.autocast("cpu"):
        expected = flex_attention(q, q, q)
    for policy in POLICIES[:1] + POLICIES[2:4]:
        with policy_region(policy):
            assert same(flex_attention(q, q, q), expected)
    with policy_region(Policy("O1", "bfloat16", deny=("matmul", "scaled_dot_product_attention"))):
        assert same(flex_attention(q, q, q), flex_attention(q, q, q))


class Inside(nn.Module):
    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        with policy_region(self.policy):
            return with_cond(x, w)


class Around(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return with_cond(x, w)


@pytest.mark.parametrize("strict", [False, True])
@each_policy
def test_exported(policy: Policy, strict: bool) -> None:
    with policy_region(policy):
        expected = chosen(x, w)
        program = torch.export.export(Around(), (x, w), strict=strict)
    assert same(program.module()(x, w), expected)
    assert same(torch.export.export(Inside(policy), (x, w), strict=strict).module()(x, w), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "pre_dispatch_eager"])
@each_policy
def test_compiled(policy: Policy, backend: str) -> None:
    compiled = torch.compile(with_cond, backend=backend, fullgraph=True)
    with policy_region(policy):
        expected = chosen(x, w)
        assert same(compiled(x, w), expected)
    assert same(torch.compile(Inside(policy), backend=backend, fullgraph=True)(x, w), expected)
    assert same(compiled(x, w), chosen(x, w))


@pytest.mark.parametrize("pre_dispatch", [False, True])
@each_policy
def test_make_fx(policy: Policy, pre_dispatch: bool) -> None:
    with policy_region(policy):
        expected = chosen(x, w)
        graph = make_fx(with_cond, pre_dispatch=pre_dispatch)(x, w)
    assert same(graph(x, w), expected)


def test_traced() -> None:
    with unamp.trace() as trace, unamp.autocast("cpu", deny="mm"):
        with_cond(x, w)
    assert ("mm", "float32") in {(record.op, record.compute) for record in trace.records}


def test_an_operator_that_is_made_in_a_region() -> None:
    with unamp.autocast("cpu", allow="add"):

        class CallIt(HigherOrderOperator):
            def __call__(self, function: Any, *args: Any) -> Any:  # type: ignore[override]
                return super().__call__(function, *args)

        call_it = CallIt("unamp_test_call_it")
        call_it.py_impl(torch._C.DispatchKey.AutogradCPU)(lambda function, *args: function(*args))
        assert call_it(torch.add, x, w).dtype == torch.bfloat16


# operators that take functions, and their hooks, are in Python
@pytest.mark.beside_kernels
def test_an_operator_that_cannot_be_hooked_raises_in_a_region_and_nothing_else_does() -> None:
    """Another version of PyTorch may make the graphs of backward passes otherwise.

    Without the error, gradients would be wrong in silence.
    """
    code = """
import torch, importlib
module = importlib.import_module("torch._higher_order_ops.while_loop")
del module.materialize_as_graph  # which its backward pass calls
import unamp

x = torch.randn(4, 4)
with unamp.autocast("cpu", torch.bfloat16, allow=["add"]):
    assert (x + x).dtype == torch.bfloat16
    assert torch.cond(x.sum() > 0, lambda x: x + x, lambda x: x + x + x, (x,)).dtype == torch.bfloat16
    try:
        torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (torch.tensor(0), x))
    except Exception as error:
        print("raised", "while_loop" in str(error))
print(torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (torch.tensor(0), x))[0].item())
"""  # noqa: E501
    assert forked("torch", code).split() == ["raised", "True", "3"]
