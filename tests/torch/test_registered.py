"""Operations of one's own on PyTorch: see `registered`."""

from collections.abc import Callable

import pytest
import registered
import torch

import unamp


@pytest.mark.parametrize("promise", registered.promises("torch"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()


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


@pytest.mark.parametrize("entry", [NAMED, both, torch.ops.unamp_tests.both, torch.ops.unamp_tests.both.default])
@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_an_operator_of_a_library_is_named_without_registering_it(entry, way):
    x, y = tensors()
    x.requires_grad_()
    call = way(lambda x, y: torch.ops.unamp_tests.both(x, y))
    with unamp.autocast(dtype="bfloat16"):
        assert call(x, y).dtype == torch.float32  # nobody has a rule for it
    with unamp.autocast(dtype="bfloat16", allow=[entry]):
        low = call(x, y)
    assert low.dtype == torch.bfloat16
    assert float(low.detach()[0, 0]) == 2.0  # of inputs that were rounded
    low.float().sum().backward()
    assert x.grad.dtype == torch.float32
    with unamp.autocast(dtype="bfloat16", deny=[entry]):
        assert call(*tensors(torch.bfloat16)).dtype == torch.float32
    assert call(x, y).dtype == torch.float32


@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_registered_operator_follows_its_rule_in_regions_that_were_made_before(way):
    x, y = tensors()
    call, region = way(lambda x, y: torch.ops.unamp_tests.both(x, y)), unamp.autocast(dtype="bfloat16")
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
    assert seen == [("unamp_unknown::twice", untouched, ("bfloat16",)), ("unamp_unknown::twice", untouched, ("float32",))]


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
