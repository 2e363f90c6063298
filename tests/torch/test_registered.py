"""Registered operations of a user on PyTorch keep the promises of the module `registered`."""

from contextlib import nullcontext
from functools import partial

import optree
import pytest
import registered
import torch
from registered import test_promises  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

import unamp


@torch.library.custom_op("unamp_tests::both", mutates_args=())
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    SEEN.append((x.dtype, y.dtype))
    return x + y


both.register_fake(lambda x, y: torch.empty_like(x))
both.register_autograd(lambda ctx, gradient: (gradient, gradient))

SEEN: list[tuple[torch.dtype, torch.dtype]] = []
NAMED = "unamp_tests::both"


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.t(), x.t() @ gradient


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def tensors(dtype=torch.float32):
    return (torch.full((2, 2), 1 + 2.0**-9, dtype=dtype) for _ in range(2))


@pytest.mark.parametrize(
    "entry", [NAMED, both, torch.ops.unamp_tests.both, torch.ops.unamp_tests.both.default]
)
@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_an_operator_of_a_library_is_named_without_registering_it(entry, way):
    x, y = tensors()
    x.requires_grad_()
    call = way(lambda x, y: torch.ops.unamp_tests.both(x, y))
    with unamp.autocast(dtype="bfloat16"):
        assert call(x, y).dtype == torch.float32  # no rule names the operation
    with unamp.autocast(dtype="bfloat16", allow=[entry]):
        low = call(x, y)
    assert low.dtype == torch.bfloat16
    assert float(low.detach()[0, 0]) == 2.0  # the inputs were rounded
    low.float().sum().backward()
    assert x.grad.dtype == torch.float32
    with unamp.autocast(dtype="bfloat16", deny=[entry]):
        assert call(*tensors(torch.bfloat16)).dtype == torch.float32
    assert call(x, y).dtype == torch.float32


@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_registered_operator_follows_its_rule_in_regions_that_were_made_before(way):
    x, y = tensors()
    call, region = (
        way(lambda x, y: torch.ops.unamp_tests.both(x, y)),
        unamp.autocast(dtype="bfloat16"),
    )
    with region:
        assert call(x, y).dtype == torch.float32
    registration = unamp.register_operation(NAMED, both, rule="low")
    with region:
        assert call(x, y).dtype == torch.bfloat16
    with unamp.autocast(dtype="bfloat16", deny=NAMED):
        assert call(x, y).dtype == torch.float32
    registration.undo()
    with region:
        assert call(x, y).dtype == torch.float32


def test_a_trace_shows_operators_that_nobody_knows():
    @torch.library.custom_op("unamp_unknown::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x, _ = tensors(torch.bfloat16)
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        twice(x)
        twice(x.float())
    seen = [(each.op, each.rule, each.inputs) for each in trace.records]
    untouched = unamp.Rule.UNTOUCHED
    assert seen == [
        ("unamp_unknown::twice", untouched, ("bfloat16",)),
        ("unamp_unknown::twice", untouched, ("float32",)),
    ]


@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_an_autograd_function_is_one(way):
    registration = unamp.register_operation("unamp_tests::autograd", Product, rule="float32")
    x, w = tensors(torch.bfloat16)
    x.requires_grad_()
    call = way(lambda x, w: Product.apply(x, w))
    with unamp.autocast(dtype="bfloat16"):
        result = call(x, w)
    result.sum().backward()
    registration.undo()
    assert result.dtype == torch.float32
    assert x.grad.dtype == torch.bfloat16
    assert "apply" not in vars(Product)
    assert Product.apply(x, w).dtype == torch.bfloat16


def test_compiled_functions_and_regions_inside_them():
    registered.a_compiled_function_follows("torch", compiled)

    @compiled
    def with_region(x, w):
        with unamp.autocast(dtype="bfloat16"):
            return registered.product(x, w)

    with registered.registered("torch", "low") as ops:
        x, w = ops.tensor(registered.X), ops.tensor(registered.W)
        assert with_region(x, w).dtype == torch.bfloat16


def test_mixed_precision_that_somebody_switched_off_is_off():
    with registered.registered("torch", "low") as ops, unamp.autocast(dtype="bfloat16"):
        with torch.autocast("cpu", enabled=False):
            assert registered.call(ops) == ("float32", registered.IN_FLOAT32)
        assert registered.call(ops) == ("bfloat16", registered.IN_LOW)


class Pair:
    def __init__(self, x, w):
        self.x, self.w = x, w


_pytree.register_pytree_node(
    Pair, lambda pair: ([pair.x, pair.w], None), lambda children, _: Pair(*children)
)


@optree.register_pytree_node_class(namespace=optree.registry.__GLOBAL_NAMESPACE)
class TreePair(Pair):
    def tree_flatten(self):
        return (self.x, self.w), None

    @classmethod
    def tree_unflatten(cls, metadata, children):
        return cls(*children)


@pytest.mark.parametrize("container", [Pair, TreePair])
def test_tensors_in_registered_containers_are_cast(container):
    registered.a_container_is_opened("torch", container)


@pytest.mark.parametrize(
    "way", [lambda f: f, partial(torch.compile, backend="aot_eager")], ids=["eager", "compiled"]
)
def test_containers_of_results_in_eager_and_compiled_functions(way):
    operation = unamp.register_operation("unamp_tests::pair", rule="low")
    both = operation(lambda x: Pair(x * 2, x * 3))
    x = torch.ones(3, requires_grad=True)
    call = way(lambda x: both(x).w)
    with unamp.autocast(dtype="bfloat16"):
        result = call(x)
    result.float().sum().backward()
    operation.undo()
    assert result.dtype == torch.bfloat16
    assert x.grad.tolist() == [3.0] * 3


def test_an_operation_that_is_compiled_by_itself_is_one_graph():
    operation = unamp.register_operation("unamp_tests::alone", rule="low")
    function = operation(lambda x: x * 2)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(3)
    for _ in range(2):
        assert compiled(x).dtype == torch.float32
        with unamp.autocast(dtype="bfloat16"):
            assert compiled(x).dtype == torch.bfloat16
        with unamp.autocast(dtype="float16"):
            assert compiled(x).dtype == torch.float16
    operation.undo()
    assert compiled(x).dtype == torch.float32


def test_second_runs_that_the_network_would_notice():
    x, _ = tensors()
    torch.manual_seed(0)
    registered.a_shadow_is_left_out(lambda x: x + torch.rand(2, 2), x, "it draws random numbers")
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.rand(2, 2)
    assert after == torch.rand(1)
    registered.a_shadow_is_left_out(lambda x: x.add_(1), x, "it changes what it is given")
    assert float(x[0, 0]) == 2 + 2.0**-9  # added once, not twice
    registered.a_shadow_is_left_out(
        lambda x: x + 1, torch.empty(2, device="meta"), "without plain numbers"
    )


def test_a_change_that_would_be_lost_is_refused():
    x, _ = tensors()
    low = torch.ones(2, dtype=torch.bfloat16)
    registered.a_change_that_would_be_lost_is_refused(lambda x: x.add_(1), x, low)
    assert (float(x[0, 0]), low.tolist()) == (2 + 2.0**-9, [2.0, 2.0])


@pytest.mark.parametrize("fake", [False, True], ids=["meta", "fake"])
@pytest.mark.parametrize("entry", ["allow", "registered"])
def test_operators_follow_their_rule_on_tensors_without_numbers(fake, entry):
    registration = (
        unamp.register_operation(NAMED, both, rule="low") if entry == "registered" else None
    )
    arguments = {} if registration else {"allow": [NAMED]}
    del SEEN[:]
    with FakeTensorMode() if fake else nullcontext():
        x, y = (torch.empty(2, 2, device="cpu" if fake else "meta") for _ in range(2))
        with (
            unamp.trace(values=True, gradients=True, shadow="float16") as trace,
            unamp.autocast(dtype="bfloat16", **arguments),
        ):
            result = both(x, y)
        with unamp.autocast(dtype="bfloat16", deny=[NAMED]):
            assert both(x.bfloat16(), y).dtype == torch.float32
    if registration:
        registration.undo()
    assert (result.dtype, result.device) == (torch.bfloat16, x.device)
    assert SEEN == []  # nothing was computed
    assert (trace.records[0].op, trace.records[0].inputs, trace.records[0].compute) == (
        NAMED,
        ("float32",) * 2,
        "bfloat16",
    )
    assert {(record.values, record.op) for record in trace.records} == {(None, NAMED)}


@pytest.fixture
def cached():
    operation = unamp.register_operation("tests::cached", rule="low")
    yield operation
    operation.undo()


def test_a_list_that_the_operation_fills_is_the_callers(cached: unamp.Registration) -> None:
    @cached
    def attend(x, cache, seen):
        cache.append(x)
        seen["last"] = x
        return x * 2

    cache: list[torch.Tensor] = []
    seen: dict[str, torch.Tensor] = {}
    with unamp.autocast(dtype="bfloat16"):
        attend(torch.ones(2), cache, seen)
        assert ([each.dtype for each in cache], list(seen)) == ([torch.bfloat16], ["last"])
        with pytest.raises(
            unamp.NotExpressible, match="'tests::cached' changes an argument in place"
        ):
            attend(torch.ones(2), [torch.ones(2)], {})


def test_a_container_of_a_class_of_ones_own_that_the_operation_fills_is_no_copy(
    cached: unamp.Registration,
) -> None:
    class Cache:
        def __init__(self, keys: list[torch.Tensor]) -> None:
            self.keys = keys

    _pytree.register_pytree_node(
        Cache, lambda cache: (cache.keys, None), lambda keys, _: Cache(list(keys))
    )

    @cached
    def attend(x, cache):
        cache.keys.append(x)
        return x * 2

    with (
        unamp.autocast(dtype="bfloat16"),
        pytest.raises(unamp.NotExpressible, match="changes an argument in place"),
    ):
        attend(torch.ones(2), Cache([torch.ones(2)]))
