"""Loss scaling and decorated networks where gradients are values: MindSpore and TensorFlow.

Each folder's module `decorated` has the framework's networks and peculiarities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import decorated as own
import numpy as np
import pytest
from decorated import LOW, NETWORKS, OPTIMIZERS, made, trained, values

import unamp

#: How many steps a training takes.
STEPS = 30


def same(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


def ones(network: Any, dtype: str | None = None) -> list[Any]:
    """Return gradients of ones, by default in the dtypes of the parameters."""
    return [own.tensor(np.ones(each.shape), dtype or each.dtype) for each in trained(network)]


def loss_after(step: Any, optimizer: Any, scaler: unamp.GradScaler) -> float:
    for number in range(STEPS):
        _, gradients = step(number % 16)
        scaler.step(optimizer, gradients=gradients)
        scaler.update()
    return sum(float(step(number)[0]) for number in range(4)) / 4


@cache
def exact(network: str) -> float:
    net, scaler = made(network), unamp.GradScaler(enabled=False)
    return loss_after(own.grads_of(net, scaler, enabled=False), own.momentum(net), scaler)


# --- loss scaling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
def test_training_with_an_overflow_reaches_the_loss_of_float32(dtype: str) -> None:
    net, scaler = made(), unamp.GradScaler(1024.0)
    optimizer, step = own.momentum(net), own.grads_of(net, scaler, "O1", dtype)
    for number in range(STEPS + 1):
        before, scale = values(trained(net)), scaler.get_scale()
        _, gradients = step(
            number % 16 if number < 10 else (number - 1) % 16, overflow=number == 10
        )
        assert scaler.step(optimizer, gradients=gradients) is (number != 10)
        scaler.update()
        if number == 10:
            assert scaler.get_scale() == scale / 2
            assert same(before, values(trained(net)))
    assert scaler.skipped == 1
    assert sum(float(step(number)[0]) for number in range(4)) / 4 == pytest.approx(
        exact("mlp"), rel=0.03
    )


def test_unscaling_clipping_and_naming() -> None:
    net, scaler = made(), unamp.GradScaler(2.0**10)
    optimizer = own.sgd(net, 0.1)
    _, scaled = own.grads_of(net, scaler, enabled=False)(0)
    _, plain = own.grads_of(net, unamp.GradScaler(enabled=False), enabled=False)(0)
    unscaled = values(scaler.unscale_(optimizer, scaled))
    for mine, exact_one in zip(unscaled, values(plain), strict=True):
        np.testing.assert_allclose(mine, exact_one, rtol=1e-6, atol=1e-9)
    norm = math.sqrt(sum(float((each**2).sum()) for each in unscaled))
    clipped = [each * np.float32(0.1 / norm) for each in unscaled]
    before = values(trained(net))
    given = type(scaled)  # a tuple in MindSpore, a list in TensorFlow
    assert (
        scaler.step(optimizer, gradients=given([own.tensor(each, "float32") for each in clipped]))
        is True
    )
    for old, new, gradient in zip(before, values(trained(net)), clipped, strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient, rtol=1e-5, atol=1e-7)
    scaler.update()
    spoilt = given([scaled[0] * math.nan, *scaled[1:]])
    assert scaler.step(optimizer, gradients=spoilt) is False
    assert scaler.first_nonfinite(optimizer, net, spoilt) == own.first_name(net)
    assert scaler.first_nonfinite(optimizer, gradients=spoilt) == own.first_name(net, optimizer)


# --- decorated networks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "level", "dtype"),
    [
        ("mlp", "O2", "float16"),
        ("mlp", "O3", "bfloat16"),
        ("convolutions", "O2", "bfloat16"),
        ("attention", "O2", "float16"),
    ],
)
def test_training_reaches_the_loss_of_float32(network: str, level: str, dtype: str) -> None:
    net, scaler = made(network), unamp.GradScaler(1024.0)
    optimizer = own.momentum(net)
    unamp.decorate(net, optimizer, level, dtype)
    loss = loss_after(own.grads_of(net, scaler, level, dtype), optimizer, scaler)
    assert scaler.skipped == 0
    assert loss == pytest.approx(exact(network), rel=0.03)
    kept = [each for each in own.parameters(net) if each.dtype == trained(made())[0].dtype]
    assert len(kept) == (4 if network == "convolutions" else 0)  # of the batch norm


@pytest.mark.parametrize("dtype", LOW)
def test_an_overflow_skips_its_step_and_no_other(dtype: str) -> None:
    net, scaler = made(), unamp.GradScaler(1024.0)
    optimizer = own.adam(net, 0.01)
    unamp.decorate(net, optimizer, "O2", dtype)
    step = own.grads_of(net, scaler, dtype=dtype)
    for number in range(6):
        before, state = values(own.parameters(net)), values(own.held(optimizer))
        _, gradients = step(number, overflow=number == 3)
        assert {each.dtype for each in gradients} == {LOW[dtype]}
        assert scaler.step(optimizer, gradients=gradients) is (number != 3)
        assert same(before, values(own.parameters(net))) is (number == 3)
        assert same(state, values(own.held(optimizer))) is (number == 3)
        if number == 3:
            assert scaler.first_nonfinite(optimizer, net, gradients) == own.first_name(net)
            assert scaler.first_nonfinite(optimizer, gradients=gradients) == own.first_name(
                net, optimizer
            )
        scaler.update()
    assert (scaler.skipped, scaler.get_scale()) == (1, 512.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_take_the_steps_of_float32(name: str) -> None:
    """Check that master weights are not made from low parameters, which bfloat16 has rounded."""
    net, exact = made(), made()
    optimizer, reference = OPTIMIZERS[name](net), OPTIMIZERS[name](exact)
    before = values(trained(net))
    unamp.decorate(net, optimizer, "O2", "bfloat16")
    assert same(before, values(own.masters(optimizer)))
    for number in range(4):
        random = np.random.default_rng(number)
        arrays = [
            values([own.tensor(random.standard_normal(each.shape), "bfloat16")])[0]
            for each in trained(net)
        ]
        own.step_with(optimizer, [own.tensor(each, "bfloat16") for each in arrays], net)
        own.step_with(reference, [own.tensor(each, "float32") for each in arrays], exact)
    assert not same(before, values(own.masters(optimizer)))
    assert same(values(own.masters(optimizer)), values(trained(exact)))
    for _ in range(2):
        assert same(
            values(trained(net)),
            values([own.tensor(each, "bfloat16") for each in values(trained(exact))]),
        )
        own.finish(optimizer, net)
        own.finish(reference, exact)


@pytest.mark.parametrize("dtype", LOW)
def test_updates_that_the_low_dtype_would_lose_are_kept(dtype: str) -> None:
    net = made()
    for each in trained(net):
        own.put(net, each, np.ones(each.shape))
    optimizer = own.sgd(net, 2.0**-12)
    unamp.decorate(net, optimizer, "O2", dtype)
    for _ in range(32):
        own.step_with(optimizer, ones(net), net)
    kept = [np.full(each.shape, 1 - 2.0**-7, np.float32) for each in trained(net)]
    assert same(values(own.masters(optimizer)), kept)
    assert same(values(trained(net)), kept)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_policy_reaches_a_step(name: str) -> None:
    stepped = []
    for enabled in (False, True):
        net = made()
        optimizer = OPTIMIZERS[name](net)
        unamp.decorate(net, optimizer, "O2", "float16")
        gradients = [own.tensor(np.full(each.shape, 1 / 3), "float16") for each in trained(net)]
        with unamp.autocast(level="O3", dtype="float16", enabled=enabled):
            for _ in range(2):
                own.step_with(optimizer, gradients, net)
        stepped.append(values(own.masters(optimizer)))
    assert same(*stepped)


def test_without_master_weights() -> None:
    net, scaler = made(), unamp.GradScaler(1024.0)
    optimizer = own.sgd(net, 0.1)
    kind = type(optimizer)
    unamp.decorate(net, optimizer, "O2", "float16", master_weight=False)
    _, gradients = own.grads_of(net, scaler)(0)
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer, gradients=gradients)
    assert type(optimizer) is kind


def test_a_parameter_that_is_given_another_value_keeps_it() -> None:
    net = made()
    optimizer = own.sgd(net, 2.0**-12)
    unamp.decorate(net, optimizer, "O2", "float16")
    bias = trained(net)[1]
    own.put(net, bias, np.full(bias.shape, 0.5))
    own.step_with(optimizer, ones(net), net)
    assert same(
        values([own.masters(optimizer)[1]]), [np.full(bias.shape, 0.5 - 2.0**-12, np.float32)]
    )


def test_bad_input_changes_nothing() -> None:
    net, low = made(), made()
    begun = own.sgd(net, 0.1)
    kind, dtype = type(begun), trained(net)[0].dtype
    unamp.decorate(low, level="O2")
    own.step_with(begun, [each * 0 for each in ones(net)], net)
    for error, match, call in [
        (
            ValueError,
            r"(0\.weight|kernel) is float16 already",
            lambda: unamp.decorate([net, low], level="O2"),
        ),
        (ValueError, "(?i)sgd.* has begun", lambda: unamp.decorate(net, begun, "O2")),
        (
            TypeError,
            "excluded_layers takes (cells|layers)",
            lambda: unamp.decorate(net, level="O2", excluded_layers=[3]),
        ),
        (
            unamp.NotExpressible,
            "master_grad",
            lambda: unamp.decorate(net, level="O2", master_grad=True),
        ),
        (
            unamp.NotExpressible,
            "save_dtype",
            lambda: unamp.decorate(net, level="O2", save_dtype="float32"),
        ),
    ]:
        with pytest.raises(error, match=match):
            call()
        assert {each.dtype for each in own.parameters(net)} == {dtype}
        assert type(begun) is kind
    unamp.decorate(net, level="O2", save_dtype="float16")
    assert trained(net)[0].dtype == LOW["float16"]


assert set(NETWORKS) == {"mlp", "convolutions", "attention"}
__all__ = [name for name in globals() if name.startswith("test_")]
