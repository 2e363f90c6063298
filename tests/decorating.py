"""Loss scaling and decorated networks where parameters hold their gradients.

They do in PyTorch and PaddlePaddle. Each folder's module `decorated` has the framework's networks
and peculiarities.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import decorated as own
import ml_dtypes
import numpy as np
import pytest
from decorated import (
    F32,
    KEPT_AS_OBJECTS,
    LOW,
    NETWORKS,
    OPTIMIZERS,
    REFUSED,
    made,
    nn,
    numbers,
    trained,
)

import unamp

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def rounded(arrays: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    return [each.astype(TYPES[dtype]).astype(np.float32) for each in arrays]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Check numbers except for the last bit, which an optimizer may round otherwise than NumPy."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def low_weights(network: Any) -> list[np.ndarray]:
    return [numbers(parameter) for parameter in trained(network)]


def gradients(network: Any) -> list[np.ndarray]:
    return [numbers(parameter.grad) for parameter in trained(network)]


def dtypes(network: Any) -> set[Any]:
    return {each.dtype for parameter in trained(network) for each in (parameter, parameter.grad)}


# --- training -------------------------------------------------------------------------------------

STEPS = 60


@cache
def float32_loss(kind: str) -> float:
    network = made(kind)
    optimizer = own.adamw(network)
    for step in range(STEPS):
        own.clear(optimizer)
        own.loss_of(network, step, enabled=False).backward()
        optimizer.step()
    return float(own.evaluated(network, enabled=False))


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", LOW)
def test_training_with_an_overflow_reaches_the_loss_of_float32(
    kind: str, level: str, dtype: str
) -> None:
    network, policy = made(kind), {"level": level, "dtype": dtype}
    optimizer = own.adamw(network)
    unamp.decorate(network, optimizer, level, dtype)
    scaler = unamp.GradScaler(1024.0)
    for step in range(STEPS):
        own.clear(optimizer)
        before = low_weights(network) + own.weights(optimizer, network) if step == 20 else []
        scaler.scale(own.loss_of(network, step, overflow=step == 20, **policy)).backward()
        assert scaler.step(optimizer) is (step != 20)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step < 20 else 512.0)
        if step == 20:
            assert same(before, low_weights(network) + own.weights(optimizer, network))
            assert same(
                rounded(low_weights(network), dtype),
                rounded(own.weights(optimizer, network), dtype),
            )
    stepped = {F32} if level == "O1" else {LOW[dtype]}  # a batch norm stays in float32
    assert {p.dtype for p in network.parameters()} == stepped | ({F32} if kind == "conv" else set())
    assert scaler.skipped == 1
    assert own.evaluated(network, **policy) == pytest.approx(float32_loss(kind), rel=0.03)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_are_those_of_float32_steps_with_the_same_gradients(
    name: str, dtype: str
) -> None:
    network, exact = made(), made()
    (optimizer, schedule), (theirs, their_schedule) = (
        own.grouped(name, network),
        own.grouped(name, exact),
    )
    unamp.decorate(network, optimizer, "O2", dtype)
    assert isinstance(optimizer, type(theirs))
    for step in range(6):
        own.loss_of(network, step, level="O2", dtype=dtype).backward()
        assert dtypes(network) == {LOW[dtype]}
        found, held = gradients(network), [parameter.grad for parameter in trained(network)]
        own.give(exact, found)
        for each in (optimizer, theirs, schedule, their_schedule):
            each.step()
        assert dtypes(network) == {LOW[dtype]}
        assert same(found, gradients(network))
        assert not KEPT_AS_OBJECTS or all(
            p.grad is each for p, each in zip(trained(network), held, strict=True)
        )
        own.clear(optimizer)
        own.clear(theirs)
    assert same(own.weights(optimizer, network), low_weights(exact))
    assert same(low_weights(network), rounded(low_weights(exact), dtype))
    assert {each.dtype for each in own.state_of(optimizer, network)} <= {F32}
    assert own.rate_of(schedule) == own.rate_of(their_schedule)


@pytest.mark.parametrize("dtype", LOW)
def test_small_updates_are_kept(dtype: str) -> None:
    moved = []
    for master_weight in (None, False):
        network = own.linear(4)
        optimizer = own.sgd(network, 1e-4)
        unamp.decorate(network, optimizer, "O2", dtype, master_weight=master_weight)
        own.wide(network.weight).sum().backward()
        for _ in range(100):
            optimizer.step()
        moved.append(numbers(network.weight).mean())
        assert network.weight.dtype == LOW[dtype]
    assert moved[0] == pytest.approx(0.99, abs=0.002)
    assert moved[1] == 1.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_in_an_open_region_is_the_same(name: str) -> None:
    ended = []
    for inside in (False, True):
        network = made()
        optimizer = own.grouped(name, network)[0]
        unamp.decorate(network, optimizer, "O3")
        for step in range(3):
            own.clear(optimizer)
            own.loss_of(network, step, level="O3", dtype="float16").backward()
            with unamp.autocast(enabled=inside, level="O3", dtype="float16"):
                optimizer.step()
        ended.append(own.weights(optimizer, network))
    assert same(*ended)


def test_whatever_happens_in_a_step_everything_is_put_back() -> None:
    class Fails(type(own.sgd(made()))):  # type: ignore[misc]
        def step(self, *args: Any) -> None:
            super().step()
            raise ArithmeticError

    network = made()
    optimizer = own.sgd(network, kind=Fails)
    unamp.decorate(network, optimizer, "O2")
    own.loss_of(network, 0, level="O2", dtype="float16").backward()
    before, found, held = (
        low_weights(network),
        gradients(network),
        [parameter.grad for parameter in trained(network)],
    )
    with pytest.raises(ArithmeticError):
        optimizer.step()
    assert all(a is b for a, b in zip(trained(network), own.stepped_by(optimizer), strict=True))
    assert dtypes(network) == {LOW["float16"]}
    assert same(found, gradients(network))
    assert not KEPT_AS_OBJECTS or all(
        p.grad is each for p, each in zip(trained(network), held, strict=True)
    )
    assert not same(before, low_weights(network))  # the step had changed them before it failed
    assert same(low_weights(network), rounded(own.weights(optimizer, network), "float16"))


# --- with loss scaling ----------------------------------------------------------------------------


def test_clipping_sees_unscaled_float32_gradients() -> None:
    network = made()
    optimizer = own.sgd(network)
    unamp.decorate(network, optimizer, "O2")
    own.loss_of(network, 0, level="O2", dtype="float16").backward()
    plain = gradients(network)
    own.clear(optimizer)
    scaler = unamp.GradScaler(2.0**12)
    scaler.scale(own.loss_of(network, 0, level="O2", dtype="float16")).backward()
    scaler.unscale_(optimizer)
    assert {parameter.grad.dtype for parameter in trained(network)} == {F32}
    assert own.clip_to_norm(network, 0.1) == pytest.approx(
        math.hypot(*map(np.linalg.norm, plain)), rel=0.01
    )
    pairs = zip(own.weights(optimizer, network), gradients(network), strict=True)
    expected = [weight - np.float32(0.1) * gradient for weight, gradient in pairs]
    assert scaler.step(optimizer) is True
    assert_close(own.weights(optimizer, network), expected)


@pytest.mark.parametrize("how", [True, False])
def test_gradients_are_low_again_after_they_are_cleared(how: bool) -> None:
    network = made()
    optimizer = own.sgd(network)
    unamp.decorate(network, optimizer, "O2")
    for step in range(2):
        scaler = unamp.GradScaler(64.0)
        for part in range(2):
            scaler.scale(
                own.loss_of(network, part, overflow=step == 1, level="O2", dtype="float16")
            ).backward()
        assert {parameter.grad.dtype for parameter in trained(network)} == {LOW["float16"]}
        assert scaler.step(optimizer) is (step == 0)
        own.clear(optimizer, how)


def test_a_tiny_gradient_survives_unscaling() -> None:
    network = own.linear(1)
    optimizer = own.sgd(network, 2.0**10)
    unamp.decorate(network, optimizer, "O2")
    scaler = unamp.GradScaler(2.0**16)
    scaler.scale(own.wide(network.weight).sum() * 2.0**-30).backward()
    assert scaler.step(optimizer) is True  # float16's smallest number is 2**-24
    assert numbers(network.weight.grad).item() == 2.0**-30
    assert own.weights(optimizer, network)[0].item() == 1.0 - 2.0**-20


def test_without_master_weights_unscaling_float16_is_refused() -> None:
    network = made()
    optimizer = own.sgd(network)
    unamp.decorate(network, optimizer, "O2", master_weight=False)
    scaler = unamp.GradScaler(8.0)
    scaler.scale(own.loss_of(network, 0, level="O2", dtype="float16")).backward()
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer)
    assert own.masters_of(optimizer) is None
    assert "master_weight" not in str(optimizer.state_dict())


@pytest.mark.parametrize("dtype", LOW)
def test_master_grad_adds_up_in_float32(dtype: str) -> None:
    network = made()
    optimizer = own.sgd(network)
    unamp.decorate(network, optimizer, "O2", dtype, master_grad=True)
    for how in (None, True, False):
        if how is not None:
            own.clear(optimizer, how)
        expected = [np.zeros(parameter.shape, np.float32) for parameter in trained(network)]
        for step in range(4):
            found = own.gradients_of(
                own.loss_of(network, step, level="O2", dtype=dtype), trained(network)
            )
            expected = [
                total + numbers(gradient) for total, gradient in zip(expected, found, strict=True)
            ]
            own.loss_of(network, step, level="O2", dtype=dtype).backward()
        assert {parameter.grad.dtype for parameter in trained(network)} == {F32}
        assert same(expected, gradients(network))
    before = own.weights(optimizer, network)
    optimizer.step()
    assert_close(
        own.weights(optimizer, network),
        [w - np.float32(0.1) * g for w, g in zip(before, expected, strict=True)],
    )


@pytest.mark.parametrize("how", ["scaled", "switched off", "alone"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_policy_reaches_a_step(name: str, how: str) -> None:
    stepped = []
    for level in ("O0", "O3"):
        network, scaler = made(), unamp.GradScaler(enabled=how == "scaled")
        optimizer = own.grouped(name, network)[0]
        for step in range(2):
            scaler.scale(own.loss_of(network, step, enabled=False)).backward()
            with unamp.autocast(level=level, dtype="bfloat16"):
                if how == "alone":
                    optimizer.step()
                else:
                    assert scaler.step(optimizer)
                    scaler.update()
            own.clear(optimizer)
        stepped.append(low_weights(network))
    assert same(*stepped)


def test_a_region_that_casts_everything_leaves_the_scale_alone() -> None:
    network = own.linear(2)
    optimizer, scaler = own.sgd(network, 1.0), unamp.GradScaler(2.0**20)
    loss = network.weight.sum()
    with unamp.autocast(dtype="float16", level="O3"):
        scaled = scaler.scale(loss)
        assert float(loss * 2.0**20) == math.inf
        scaled.backward()
        assert scaler.step(optimizer) is True
    assert float(scaled) == 4 * 2.0**20
    assert not numbers(network.weight).any()


def test_a_compiled_function_follows_the_scale() -> None:
    network, scaler = made(), unamp.GradScaler(64.0, growth_interval=1)
    optimizer, (x, _) = own.sgd(network, 0.0), own.batch(0)

    def mean(x: Any) -> Any:
        with unamp.autocast(dtype="bfloat16"):
            return own.wide(network(x)).square().mean()

    call = own.compiled(lambda x: scaler.scale(mean(x)))
    for scale in (64.0, 128.0, 256.0):
        loss = call(x)
        assert float(loss) == float(mean(x)) * scale
        loss.backward()
        assert scaler.step(optimizer) is True
        own.clear(optimizer)
        scaler.update()


def test_sparse_gradients_are_unscaled() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer, scaler = own.sgd(embedding, 1.0), unamp.GradScaler(2.0**10)
    before = numbers(embedding.weight)
    scaler.scale(embedding(own.index([1, 1, 2])).sum()).backward()
    assert scaler.step(optimizer) is True
    scaler.update()
    own.clear(optimizer)
    assert_close([before - numbers(embedding.weight)], [np.outer([0, 2, 1, 0, 0], [1, 1, 1])])
    scaler.scale(embedding(own.index([3])).sum() * math.inf).backward()
    assert scaler.step(optimizer) is False
    assert scaler.first_nonfinite(optimizer, embedding) == "weight"


def test_low_parameters_are_refused_before_anything_happens() -> None:
    network, scaler = own.linear(2), unamp.GradScaler(8.0)
    network.to(dtype=LOW["float16"])
    optimizer = own.sgd(network)
    scaler.scale(own.wide(network.weight).sum()).backward()
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer)
    assert (numbers(network.weight.grad) == 8.0).all()


def test_gradients_cannot_be_handed_over() -> None:
    network, scaler = own.linear(2), unamp.GradScaler()
    scaler.scale(network.weight.sum()).backward()
    with pytest.raises(TypeError, match="(PyTorch|PaddlePaddle)'s parameters hold their gradients"):
        scaler.step(own.sgd(network), gradients=[network.weight.grad])


# --- networks that carry their policy -------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_network_of_auto_mixed_precision_computes_low_and_returns_float32(
    level: str, dtype: str
) -> None:
    network, (x, _) = made("conv"), own.batch(0)
    wrapped = unamp.auto_mixed_precision(network, level, LOW[dtype])
    with unamp.trace() as trace:
        found = wrapped(x)
    computed = {record.op: record.compute for record in trace.records}
    assert computed["conv2d"] == computed["linear"] == computed["relu"] == dtype
    assert computed["batch_norm"] == (dtype if level == "O3" else "float32")
    assert found.dtype == F32
    np.testing.assert_allclose(numbers(found), numbers(network(x)), rtol=0.05, atol=0.05)


def test_a_network_of_auto_mixed_precision_stays_a_network() -> None:
    network, (x, _) = made("conv"), own.batch(0)
    wrapped = unamp.auto_mixed_precision(network, "O2", "bfloat16")
    assert isinstance(wrapped, nn.Sequential)
    assert list(wrapped.state_dict()) == list(network.state_dict())
    assert all(a is b for a, b in zip(wrapped.parameters(), network.parameters(), strict=True))
    wrapped.eval()
    assert not network.training
    wrapped(x).sum().backward()
    assert {parameter.grad.dtype for parameter in trained(network)} == {F32}
    copied = copy.deepcopy(wrapped)
    assert np.array_equal(numbers(copied(x)), numbers(wrapped(x)))
    assert copied[1].weight is not network[1].weight


def test_auto_mixed_precision_takes_networks_and_low_dtypes() -> None:
    with pytest.raises(TypeError, match=rf"{nn.__name__}\.(Module|Layer)"):
        unamp.auto_mixed_precision(nn.functional.relu, "O1")
    with pytest.raises(ValueError, match="float64"):
        unamp.auto_mixed_precision(made(), "O1", "float64")


# --- several, changed, refused --------------------------------------------------------------------


def test_several_networks_and_several_optimizers() -> None:
    first, second = made(), made("conv")
    others = [parameter for layer in (*first[1:], second) for parameter in layer.parameters()]
    shared = [own.sgd(first[0]), own.adam(others, 0.1)]
    models, optimizers = unamp.decorate([first, second], shared, "O2", "bfloat16")
    assert models == [first, second]
    assert optimizers is shared
    scaler, before = unamp.GradScaler(64.0), low_weights(first)
    for loss in scaler.scale(
        [own.loss_of(each, 0, level="O2", dtype="bfloat16") for each in models]
    ):
        loss.backward()
    own.spoil(first[0].weight)
    assert [scaler.step(each) for each in optimizers] == [False, True]
    assert [np.array_equal(*pair) for pair in zip(before, low_weights(first), strict=True)][:3] == [
        True,
        True,
        False,
    ]


def test_two_optimizers_of_one_parameter_follow_each_other() -> None:
    network = nn.Linear(3, 2)
    exact, both = low_weights(network), [own.sgd(network), own.sgd(network, 0.01)]
    unamp.decorate(network, both, "O2")
    for parameter in network.parameters():
        own.wide(parameter).sum().backward()
    for _ in range(3):
        for optimizer, rate in zip(both, (0.1, 0.01), strict=True):
            optimizer.step()
            exact = [weight - np.float32(rate) for weight in exact]
    assert_close(own.weights(both[0], network), exact)


def test_a_changed_parameter_takes_its_master_weight_along() -> None:
    network = nn.Linear(5, 3)
    optimizer = own.sgd(network, 0.0)
    unamp.decorate(network, optimizer, "O2")
    before, changed = own.weights(optimizer, network)[0], numbers(network.weight)
    changed[1:] = changed[1:].clip(-0.01, 0.01)
    changed[0, 0] = 0.5
    own.put(network.weight, changed)
    saved = own.saved_master(optimizer, network.weight)
    assert np.array_equal(saved[0, 1:], before[0, 1:])
    assert saved[0, 0] == 0.5
    assert abs(saved[1:]).max() <= 0.0101
    other = nn.Linear(5, 3)
    own.load(network, other.state_dict())
    optimizer.step()
    assert same(low_weights(network), rounded(low_weights(other), "float16"))


def _low_already() -> tuple[Any, Any]:
    network = made()
    network[3].to(dtype=LOW["float16"])
    return network, own.sgd(network)


def _begun() -> tuple[Any, Any]:
    network = made()
    optimizer = own.adam(network.parameters(), 0.1)
    own.loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    return network, optimizer


def _decorated_already() -> tuple[Any, Any]:
    optimizer = own.sgd(made())
    unamp.decorate(made(), optimizer, "O2")
    return made(), optimizer


ALL_REFUSED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "parameter 3.weight is float16 already": _low_already,
    "has taken steps": _begun,
    "is decorated already": _decorated_already,
    **REFUSED,
}


@pytest.mark.parametrize("said", ALL_REFUSED)
def test_what_is_refused_is_left_as_it_was(said: str) -> None:
    network, optimizer = ALL_REFUSED[said]()
    other, its = made(), own.sgd(made())
    before, kinds = low_weights(network), [type(each) for each in (its, optimizer, other)]
    with pytest.raises(ValueError, match=said):
        unamp.decorate([other, network], [its, optimizer], "O2")
    assert {p.dtype for p in other.parameters()} == {F32}
    assert same(before, low_weights(network))
    assert [type(each) for each in (its, optimizer, other)] == kinds
    assert own.masters_of(its) is None


@pytest.mark.parametrize("excluded", [nn.functional.relu, int, "Linear"])
def test_excluded_layers_are_layers(excluded: Any) -> None:
    network = made()
    with pytest.raises(
        TypeError,
        match=rf"excluded_layers takes {nn.__name__}\.(Module|Layer)s and classes of them",
    ):
        unamp.decorate(network, level="O2", excluded_layers=[nn.LayerNorm, excluded])
    assert {p.dtype for p in network.parameters()} == {F32}


def test_other_optimizers_are_not_affected() -> None:
    network, plain = made(), own.sgd(made())
    kind, step = type(plain), type(plain).step
    unamp.decorate(network, optimizer := own.sgd(network), "O2")
    assert kind.step is step
    assert type(plain) is kind
    assert repr(optimizer).partition(" at 0x")[0] == repr(plain).partition(" at 0x")[0]
    assert type(network).__name__ == "Sequential"
    assert "master_weight" not in str(plain.state_dict())


__all__ = [name for name in globals() if name.startswith("test_")]
