"""Regions inside compiled functions and around them give eager mode's dtypes.

No graph is stale, and functions are really compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from elsewhere import python
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

A = Policy("O1", "bfloat16", allow=("add", "exp"), deny="mm")
B = Policy("O1", "bfloat16", deny=("add", "exp"), allow="softmax")
NATIVE = Policy("O1", "bfloat16", preset="native")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.mm(x, w), x + w, x.exp(), F.linear(x, w), F.softmax(x, 1)


x, w = torch.rand(4, 4), torch.rand(4, 4)


def eager(policy: Policy | None) -> tuple[Tensor, ...]:
    if policy is None:
        return function(x, w)
    with policy_region(policy):
        return function(x, w)


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...], exact: bool = True) -> bool:
    return all(
        p.dtype == q.dtype
        and (
            torch.equal(p, q)
            if exact
            else torch.allclose(p.float(), q.float(), rtol=0.02, atol=0.02)
        )
        for p, q in zip(a, b, strict=True)
    )


# --- a region around ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "pre_dispatch_eager", "aot_eager", "inductor"])
def test_a_region_around_gives_eagers_dtypes(backend: str) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    several = (None, A, NATIVE, B, Policy("O3", "float16"), A, None)
    for policy in several if backend != "inductor" else (A, None, A):  # inductor is slow to compile
        if policy is None:
            found = compiled(x, w)
        else:
            with policy_region(policy):
                found = compiled(x, w)
        assert same(found, eager(policy), exact=backend != "inductor"), policy


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_off_a_b_a_off_gives_exactly_three_graphs(backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    graphs = []
    for policy in (None, A, B, A, None, B):
        if policy is None:
            compiled(x, w)
        else:
            with policy_region(policy):
                assert same(compiled(x, w), eager(policy))
        graphs.append(counter.frame_count)
    assert graphs == [1, 2, 3, 3, 3, 3]


def test_nested_regions_do_not_get_stale_graphs() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for _ in range(2):
        with policy_region(A):
            assert same(compiled(x, w), eager(A))
            with policy_region(B):
                assert same(compiled(x, w), eager(B))
                with unamp.autocast("cpu", enabled=False):
                    assert same(compiled(x, w), eager(None))
            assert same(compiled(x, w), eager(A))
        assert same(compiled(x, w), eager(None))
    # one for each policy, one with the policy switched off, and one outside
    assert counter.frame_count == 4


def test_policies_that_differ_in_one_operation_only_get_graphs_of_their_own() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda t: t + t, backend=counter)
    for n, (policy, dtype) in enumerate(
        [
            (Policy("O1", "bfloat16", allow="add"), BF16),
            (Policy("O1", "bfloat16", allow="mul"), F32),
            (Policy("O1", "float16", allow="add"), F16),
        ]
    ):
        with policy_region(policy):
            assert compiled(x).dtype == dtype
        assert counter.frame_count == n + 1


def test_equal_policies_share_a_graph() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(function, backend=counter)
    for _ in range(3):
        with policy_region(Policy("O1", "bfloat16", allow=["exp", "add"])):
            compiled(x, w)
        with unamp.autocast("cpu", allow=("add", torch.exp)):
            compiled(x, w)
    assert counter.frame_count <= 2  # once for "cpu", once for the devices of the tensors


# --- a region inside ------------------------------------------------------------------------------


def with_autocast(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with unamp.autocast("cpu", "bfloat16", allow=("add", "exp"), deny="mm"):
        return function(x, w)


def with_policy_region(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with policy_region(A):
        return function(x, w)


@policy_region(A)
def decorated(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return function(x, w)


def with_auto_cast(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with unamp.auto_cast(
        True, ["elementwise_add", "exp"], ["torch.mm"], dtype="bfloat16", preset="unamp"
    ):
        return function(x, w)


INSIDE = [with_autocast, with_policy_region, decorated, with_auto_cast]


@pytest.mark.parametrize(
    ("inside", "backend"),
    [
        *((f, b) for f in INSIDE for b in ("eager", "pre_dispatch_eager", "aot_eager")),
        (with_policy_region, "inductor"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_region_inside_is_one_whole_graph(inside: Callable[..., Any], backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(inside, backend=counter, fullgraph=True)
    expected = eager(A)
    for _ in range(2):
        assert same(compiled(x, w), expected, exact=backend != "inductor")
        assert unamp.current_policy() is None
    assert counter.frame_count == 1


def test_what_is_before_and_after_a_region_inside_is_outside_of_it() -> None:
    def mixed(x: Tensor) -> tuple[Tensor, ...]:
        before = x + x
        with unamp.autocast("cpu", allow="add"):
            inside = x + x
            with unamp.autocast("cpu", enabled=False):
                off = x + x
            with unamp.autocast("cpu", "float16", allow="add"):
                other = x + x
            again = x + x
        return before, inside, off, other, again, x + x

    expected = mixed(x)
    assert [t.dtype for t in expected] == [F32, BF16, F32, F16, BF16, F32]
    assert same(torch.compile(mixed, backend="aot_eager", fullgraph=True)(x), expected)


def test_a_region_inside_and_another_around() -> None:
    compiled = torch.compile(
        lambda x, w: (*function(x, w), *with_autocast(x, w)), backend="aot_eager", fullgraph=True
    )
    for policy in (None, B, Policy("O3", "float16"), B, None):
        around = policy_region(policy) if policy else unamp.autocast("cpu", enabled=False)
        with around:
            assert same(compiled(x, w), (*eager(policy), *eager(A)))
            assert unamp.current_policy() == around.policy


def test_questions_asked_inside_are_answered_by_the_region() -> None:
    def asks(x: Tensor) -> Tensor:
        with unamp.autocast("cpu", "bfloat16"):
            return x * 2 if unamp.is_autocast_enabled() else x * 3

    assert torch.equal(torch.compile(asks, backend="aot_eager")(x), x * 2)


REGION = policy_region(A)


def test_a_function_decorated_inside_the_compiled_one() -> None:
    def outer(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        @policy_region(A)
        def within(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            return function(a, b)

        return within(a, b)

    assert same(torch.compile(outer, backend="aot_eager", fullgraph=True)(x, w), eager(A))
    assert same(function(x, w), eager(None))


def test_a_generator_decorated_inside_the_compiled_function() -> None:
    def outer(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        @policy_region(A)
        def within(a: Tensor, b: Tensor) -> Iterator[Tensor]:
            received = yield a @ b
            yield received @ b.T @ b

        steps = within(a, b)
        first = next(steps)
        between = a @ b
        return first, between, steps.send(first)

    results = torch.compile(outer, backend="aot_eager", fullgraph=True)(x, w)
    assert [result.dtype for result in results] == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert same(results, outer(x, w))


def test_a_region_object_from_outside_the_function() -> None:
    def uses(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with REGION:
            return function(x, w)

    compiled = torch.compile(uses, backend="aot_eager")
    for _ in range(2):
        assert same(compiled(x, w), eager(A))
        assert unamp.current_policy() is None
    try:
        found, said = torch.compile(uses, backend="aot_eager", fullgraph=True)(x, w), ""
    except Exception as error:
        found, said = None, str(error).lower()
    # The compiler makes one graph, or the error names what it cannot trace.
    assert same(found, eager(A)) if found else "region" in said or "context manager" in said
    assert unamp.current_policy() is None


class Held:
    """An object that holds one policy after another."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.region = policy_region(policy)
        self.function = self.region(function)


def with_held_policy(held: Held) -> tuple[Tensor, ...]:
    with policy_region(held.policy):
        return function(x, w)


def with_held_region(held: Held) -> tuple[Tensor, ...]:
    with held.region:
        return function(x, w)


def held_function(held: Held) -> tuple[Tensor, ...]:
    return held.function(x, w)


@pytest.mark.parametrize("wrong", [("O1", "bfloat16"), "O1", None])
def test_what_is_no_policy_is_refused_inside_too(wrong: Any) -> None:
    def uses(x: Tensor) -> Tensor:
        with policy_region(wrong):
            return x @ x

    with pytest.raises(Exception, match="policy must be an unamp.Policy"):
        torch.compile(uses, backend="eager")(x)
    assert unamp.current_policy() is None


@pytest.mark.parametrize("inside", [with_held_policy, with_held_region, held_function])
def test_another_policy_in_the_same_place_is_followed(
    inside: Callable[[Held], tuple[Tensor, ...]],
) -> None:
    compiled = torch.compile(inside, backend="aot_eager")
    for policy in (A, B, A, B.replace(promote=True), Policy("O3", "float16")):
        assert same(compiled(Held(policy)), eager(policy))


# --- training -------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self, policy: Policy | None = None) -> None:
        super().__init__()
        self.first, self.second, self.policy = nn.Linear(4, 8), nn.Linear(8, 2), policy

    def body(self, x: Tensor) -> Tensor:
        return self.second((self.first(x) + 1).relu()).exp()

    def forward(self, x: Tensor) -> Tensor:
        if self.policy is None:
            return self.body(x)
        with policy_region(self.policy):
            return self.body(x)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_training(where: str, backend: str, backward_inside: bool) -> None:
    network = Network(A if where == "inside" else None)
    policy = A.replace(cache=False)

    def gradients(forward: Callable[..., Tensor]) -> list[Tensor]:
        with policy_region(policy if where == "around" else Policy(enabled=False)):
            out = forward(x)
            if backward_inside:
                out.float().square().sum().backward()
        if not backward_inside:
            out.float().square().sum().backward()
        assert out.dtype == BF16
        found = [p.grad for p in network.parameters()]
        network.zero_grad(set_to_none=True)
        return [out, *found]

    expected = gradients(network)
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    for _ in range(2):
        for got, want in zip(gradients(compiled), expected, strict=True):
            assert got.dtype == want.dtype
            assert torch.allclose(got.float(), want.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("where", ["inside", "around"])
def test_checkpoint_within_compile(where: str) -> None:
    network = Network(A if where == "inside" else None)

    def forward(x: Tensor) -> Tensor:
        return checkpoint(network, x, use_reentrant=False)

    compiled = torch.compile(forward, backend="aot_eager")
    results = []
    for call in (forward, compiled):
        with policy_region(A.replace(cache=False) if where == "around" else Policy(enabled=False)):
            out = call(x)
        out.float().square().sum().backward()
        results.append([out, *(p.grad for p in network.parameters())])
        network.zero_grad(set_to_none=True)
    for got, want in zip(*results, strict=True):
        assert got.dtype == want.dtype
        assert torch.allclose(got.float(), want.float(), rtol=0.05, atol=0.05)


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_error_while_tracing_leaves_no_region_open(
    backend: str, native_state: Callable[[], Any]
) -> None:
    def fails(x: Tensor) -> Tensor:
        with unamp.autocast("cpu", allow="add"):
            return torch.mm(x + x, torch.rand(3, 3))

    before = native_state()
    for _ in range(2):
        with pytest.raises(Exception, match="(?i)shape|size|mat"):
            torch.compile(fails, backend=backend, fullgraph=True)(x)
        assert native_state() == before
        assert unamp.current_policy() is None
    with policy_region(B):
        inside = native_state()
        with pytest.raises(Exception, match="(?i)shape|size|mat"):
            torch.compile(fails, backend=backend)(x)
        assert native_state() == inside
        assert unamp.current_policy() == B
        assert same(function(x, w), eager(B))


def test_an_exception_raised_inside_passes_through(native_state: Callable[[], Any]) -> None:
    def raises(x: Tensor) -> Tensor:
        with unamp.autocast("cpu", allow="add"):
            y = x + x
            if x.shape[0] == 4:
                raise ZeroDivisionError
            return y

    before = native_state()
    with pytest.raises(ZeroDivisionError):
        torch.compile(raises, backend="aot_eager")(x)
    assert native_state() == before
    assert unamp.current_policy() is None
    assert torch.compile(raises, backend="aot_eager")(torch.rand(3, 3)).dtype == BF16


def test_a_graph_break_inside_gives_the_right_result(native_state: Callable[[], Any]) -> None:
    def breaks(x: Tensor) -> tuple[Tensor, ...]:
        with unamp.autocast("cpu", allow="add"):
            before = x + x
            torch._dynamo.graph_break()
            after = x + before
            if after.sum().item() > 0:
                after = after + x
        return before, after, x + x

    state = native_state()
    expected = breaks(x)
    assert [t.dtype for t in expected] == [BF16, BF16, F32]
    compiled = torch.compile(breaks, backend="aot_eager")
    for _ in range(2):
        assert same(compiled(x), expected)
        assert native_state() == state
        assert unamp.current_policy() is None


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w), (4,), x.new_ones(4) / 3, x.new_ones(4)).exp()


def normed_alone(x: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, w[0]), (4,))


TRANSFORMED: dict[str, Callable[[Tensor], Any]] = {
    "vmap": torch.func.vmap(normed),
    "vmap of grad": torch.func.vmap(torch.func.grad(lambda x: normed(x).sum())),
    "grad": torch.func.grad(lambda x: normed(x).sum()),
    "jvp": lambda x: torch.func.jvp(normed_alone, (x,), (x,)),
    "jacrev": lambda x: torch.func.jacrev(normed)(x[:1]),
    "afterwards": lambda x: (torch.func.vmap(normed)(x), normed(x)),
}


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_transform_in_a_compiled_function_follows_the_policy(name: str, where: str) -> None:
    policy, transformed = Policy("O2", "bfloat16"), TRANSFORMED[name]

    def inside(x: Tensor) -> Any:
        with policy_region(policy):
            return transformed(x)

    def leaves(result: Any) -> tuple[Tensor, ...]:
        return result if isinstance(result, tuple) else (result,)

    called = transformed if where == "around" else inside
    compiled = torch.compile(called, backend="aot_eager", fullgraph=True)
    with policy_region(policy) if where == "around" else nullcontext():
        assert same(leaves(compiled(x)), leaves(called(x)))


def test_operations_unamp_emulates_are_compiled_too() -> None:
    compiled = torch.compile(lambda t: torch.cdist(t, t + 1), backend="aot_eager", fullgraph=True)
    with unamp.autocast("cpu", allow="cdist"):
        assert compiled(x).dtype == BF16


def test_a_banned_operation_raises_when_compiled() -> None:
    compiled = torch.compile(F.binary_cross_entropy, backend="aot_eager")
    with (
        unamp.autocast("cpu", preset="torch-cuda"),
        pytest.raises(Exception, match="binary_cross_entropy"),
    ):
        compiled(x, x)
    assert compiled(x, x).dtype == F32


def test_torchs_own_autocast_inside_and_around_is_as_ever() -> None:
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with policy_region(A):
        compiled(x, w)
    with torch.autocast("cpu"):
        assert same(compiled(x, w), function(x, w))
    with policy_region(A), torch.autocast("cpu", enabled=False):
        assert same(compiled(x, w), eager(None))

    def own(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu"):
            return x @ x, x + x

    for policy in (None, A):
        with policy_region(policy or Policy(enabled=False)):
            assert same(torch.compile(own, backend="aot_eager", fullgraph=True)(x), own(x))


# --- the next process -----------------------------------------------------------------------------

PROCESS = """
import os, sys, torch, unamp, torch._inductor.compile_fx
from torch._dynamo.utils import counters
x = torch.ones(4)
for allow in sys.argv[1:]:
    if not os.fork():  # a process that has compiled nothing
        compiled = torch.compile(lambda x: (x + x, x.exp()), backend="inductor", fullgraph=True)
        with unamp.autocast("cpu", allow=allow):
            dtypes = [str(t.dtype)[6:] for t in compiled(x)]
        print(*dtypes, counters["aot_autograd"]["autograd_cache_hit"], flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def run(cache: Path, *allowed: str) -> list[str]:
    """Compile a function for each allowed operation; return the dtypes and the cache's hits."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    environment |= {"TORCHINDUCTOR_AUTOGRAD_CACHE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"TORCHINDUCTOR_VEC_ISA_OK": "0"}  # no programs that try out vector instructions
    return python("-c", PROCESS, *allowed, **environment).splitlines()


# The cache on disk and the graphs of this process tell policies apart by the same means.
@pytest.mark.beside_kernels
def test_a_later_process_with_the_same_cache_and_another_policy(tmp_path: Path) -> None:
    assert run(tmp_path, "add") == ["bfloat16 float32 0"]
    # another policy is compiled anew; the cache on disk serves the same policy again
    assert run(tmp_path, "exp", "add") == ["float32 bfloat16 0", "bfloat16 float32 1"]


def test_a_librarys_default_is_traced_anew_for_what_is_in_force_around_it() -> None:
    """Each state around the call has its own graph, in whatever order the states come.

    They are: nothing, a region, a region that switches off, and PyTorch's own AMP.
    """

    def product(x: torch.Tensor) -> torch.Tensor:
        with unamp.default_region(unamp.Policy("O1", "bfloat16"), like=x):
            return x @ x

    compiled, x = torch.compile(product, backend="eager", fullgraph=True), torch.randn(4, 4)
    around = {
        "nothing": (nullcontext(), torch.bfloat16),
        "off": (unamp.autocast(enabled=False), torch.float32),
        "O0": (unamp.autocast(level="O0"), torch.float32),
        "a region": (unamp.autocast("cpu", torch.float16), torch.float16),
        "PyTorch's own": (torch.autocast("cpu", torch.float16), torch.float16),
    }
    for names in (around, reversed(around)):
        for name in names:
            context, expected = around[name]
            with context:
                assert compiled(x).dtype is product(x).dtype is expected, name
