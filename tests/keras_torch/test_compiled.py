"""Regions hold inside functions that `torch.compile` makes of layers of Keras with PyTorch."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import torch
from keras import layers

import unamp

BF16 = {"device_type": "cpu", "dtype": "bfloat16"}
X = torch.linspace(-1, 1, 24).reshape(3, 8)


def _built(*found: Any) -> keras.Model:
    model = keras.Sequential(list(found))
    model(X)
    return model


def _same(run: Any, **how: Any) -> list[torch.Tensor]:
    """Compare a compiled function with its original, and return the results.

    Both are called outside of regions, in a region, and outside again.
    """
    compiled = torch.compile(run, fullgraph=True, **how)
    for around in (False, True, False):
        with unamp.autocast("cpu", "float16", enabled=around):
            got, want = compiled(X), run(X)
        assert [each.dtype for each in got] == [each.dtype for each in want]
        assert all(map(torch.equal, got, want))
    assert unamp.current_policy() is None
    return got


@pytest.mark.parametrize("first", [None, "float32", "float16"])
def test_a_region_is_followed_whatever_ran_before_it(first: str | None) -> None:
    """Dynamo traces layers again that it met before unamp patched them."""
    model = _built(layers.Dense(8, activation="relu"), layers.LayerNormalization(), layers.Dense(3))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        before = []
        if first is not None:
            with unamp.autocast("cpu", "float16", enabled=first == "float16"):
                before = [model(x)]
        with unamp.autocast(**BF16):
            return [*before, model(x), keras.ops.softmax(x)]

    got = _same(run, backend="eager")
    before = [] if first is None else [getattr(torch, first)]
    assert [each.dtype for each in got] == [*before, torch.bfloat16, torch.float32]
    assert model(X).dtype == torch.float32


def test_rules_for_parts_are_followed() -> None:
    """The graph does not contain the making of the parts' policies."""
    model = _built(layers.Dense(4, activation="softmax"))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        with unamp.autocast(**BF16, level="O2", deny=["linear"], allow=["softmax"]):
            return [model(x), model.layers[0](x)]

    assert [each.dtype for each in _same(run, backend="eager")] == [torch.bfloat16] * 2


def test_gradients_are_those_of_the_function() -> None:
    model = _built(layers.Dense(4))

    def loss(x: torch.Tensor) -> torch.Tensor:
        with unamp.autocast(**BF16):
            return model(x).float().sum()

    found = [
        torch.autograd.grad(run(X), [each.value for each in model.trainable_variables])
        for run in (loss, torch.compile(loss, backend="aot_eager"))
    ]
    for got, want in zip(*found, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, want)


def test_the_patches_stay_for_what_is_compiled() -> None:
    """Otherwise the compiled function's guards would fail, and each call would compile it again."""
    model, plain = _built(layers.Dense(4)), layers.Dense.call
    counted = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counted)
    def run(x: torch.Tensor) -> Any:
        with unamp.autocast(**BF16):
            return model(x)

    assert run(X).dtype == torch.bfloat16
    assert layers.Dense.call is not plain
    with unamp.autocast(**BF16):
        pass
    assert run(X).dtype == torch.bfloat16
    assert counted.frame_count == 1
    assert model(X).dtype == torch.float32


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_a_loss_in_a_graph_follows_the_policy_and_ends_in_float32(reduction: str) -> None:
    """The loss is of 70,000 ones: float16 holds neither their number nor their sum."""
    products = []

    class Squares(keras.losses.Loss):
        def call(self, wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
            products.append(keras.ops.matmul(found[:8], found[:8].T).dtype)
            return keras.ops.mean(keras.ops.square(wanted - found), axis=-1)

    loss = Squares(reduction=reduction)
    wanted, found = torch.ones(70_000, 1), torch.zeros(70_000, 1)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        with unamp.autocast("cpu", "float16", level="O2"):
            return [loss(wanted, found + x.sum() * 0)]

    (value,) = _same(run, backend="aot_eager")
    assert value.dtype == torch.float32
    assert float(value) == (1.0 if reduction == "sum_over_batch_size" else 70_000.0)
    assert set(products) == {torch.float16}
