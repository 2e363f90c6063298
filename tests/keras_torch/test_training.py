"""Keras' optimizers on PyTorch train with `GradScaler` and `decorate`.

The gradients are PyTorch's, the steps Keras'.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import torch

import unamp

layers, optimizers = keras.layers, keras.optimizers


def made(**last):
    keras.utils.set_random_seed(3)
    net = keras.Sequential(
        [layers.Dense(12, activation="tanh"), layers.BatchNormalization(), layers.Dense(1, **last)]
    )
    net.build((None, 6))
    return net


def data(number, size=8):
    x = np.random.default_rng(number).standard_normal((size, 6), dtype="float32")
    return torch.tensor(x), torch.tensor(np.sin(x.sum(1, keepdims=True)))


def scaled_pass(net, scaler, number, *, level="O2", dtype="float16", overflow=False):
    x, y = data(number)
    net.zero_grad()
    with unamp.autocast("cpu", dtype=dtype, level=level):
        out = net(x * math.inf if overflow else x, training=True)
    loss = (out.float() - y).square().mean()
    scaler.scale(loss).backward()
    return float(loss.detach()), [each.value.grad for each in net.trainable_variables]


def values(variables):
    return [each.value.detach().float().clone() for each in variables]


def same(before, after):
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("handed", [True, False], ids=["handed over", "held"])
def test_a_scaled_step_is_keras_own_step(handed: bool) -> None:
    one, other = made(), made()
    scaler = unamp.GradScaler(1024.0)
    mine, own = optimizers.Adam(0.01), optimizers.Adam(0.01)
    for optimizer, net in ((mine, one), (own, other)):
        optimizer.build(net.trainable_variables)
    for number in range(3):
        _, gradients = scaled_pass(one, scaler, number, level="O1", dtype="bfloat16")
        assert scaler.step(mine, gradients=gradients if handed else None)
        scaler.update()
        plain = unamp.GradScaler(enabled=False)
        _, gradients = scaled_pass(other, plain, number, level="O1", dtype="bfloat16")
        with torch.no_grad():
            own.apply(gradients, other.trainable_variables)
        for a, b in zip(values(one.variables), values(other.variables), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_overflow_skips_the_step_and_backs_off() -> None:
    net, scaler, optimizer = made(), unamp.GradScaler(1024.0), optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(net.trainable_variables)
    scaled_pass(net, scaler, 0, overflow=True)
    before = values(net.trainable_variables), values(optimizer.variables)
    assert scaler.first_nonfinite(optimizer) == net.trainable_variables[0].path
    assert not scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), scaler.skipped) == (512.0, 1)
    assert same(before[0], values(net.trainable_variables))
    assert same(before[1], values(optimizer.variables))


def test_unscaled_gradients_can_be_clipped_where_they_are() -> None:
    net, scaler, optimizer = made(), unamp.GradScaler(1024.0), optimizers.SGD(1.0)
    optimizer.build(net.trainable_variables)
    scaled_pass(net, scaler, 0, level="O1", dtype="bfloat16")
    before = values(net.trainable_variables)
    scaler.unscale_(optimizer)
    for each in net.trainable_variables:
        each.value.grad.fill_(0.25)
    scaler.step(optimizer)
    assert all(
        torch.equal(a - 0.25, b)
        for a, b in zip(before, values(net.trainable_variables), strict=True)
    )


def test_an_optimizer_without_variables_is_told_how_to_get_them() -> None:
    net, scaler, optimizer = made(), unamp.GradScaler(1024.0), optimizers.SGD(1.0)
    _, gradients = scaled_pass(net, scaler, 0, level="O1", dtype="bfloat16")
    with pytest.raises(RuntimeError, match=r"optimizer.build\(model.trainable_variables\)"):
        scaler.step(optimizer)
    assert scaler.step(optimizer, net.trainable_variables, gradients=gradients)


def test_bad_gradients() -> None:
    net, scaler, optimizer = made(), unamp.GradScaler(1024.0), optimizers.SGD(1.0)
    _, gradients = scaled_pass(net, scaler, 0, level="O1", dtype="bfloat16")
    with pytest.raises(TypeError, match="must be a list of tensors.*got a tuple in it"):
        scaler.step(optimizer, gradients=list(zip(gradients, net.trainable_variables, strict=True)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_master_weights_are_those_of_float32_steps(dtype: str) -> None:
    net, optimizer, scaler = made(), optimizers.Adam(0.01, clipnorm=1.0), unamp.GradScaler(256.0)
    float32 = [keras.Variable(values([each])[0]) for each in net.trainable_variables]
    own = optimizers.Adam(0.01, clipnorm=1.0)
    unamp.decorate(net, optimizer, level="O2", dtype=dtype)
    low = [each for each in net.trainable_variables if "batch" not in each.path]
    assert {each.value.dtype for each in low} == {getattr(torch, dtype)}
    assert {each.dtype for each in net.variables if "batch" in each.path} == {"float32"}
    optimizer.build(net.trainable_variables)
    for number in range(4):
        _, gradients = scaled_pass(net, scaler, number, dtype=dtype)
        own.apply([each.float() / scaler.get_scale() for each in gradients], float32)
        scaler.step(optimizer)
        scaler.update()
        for each, master, want in zip(
            net.trainable_variables, optimizer._trainable_variables, float32, strict=True
        ):
            assert torch.equal(master.value, want.value)
            assert torch.equal(each.value, want.value.to(each.value.dtype))
    assert scaler.skipped == 0


def test_decorated_training_converges() -> None:
    net, optimizer, scaler = made(), optimizers.Adam(0.02), unamp.GradScaler(1024.0)
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    optimizer.build(net.trainable_variables)
    losses = []
    for number in range(60):
        loss, _ = scaled_pass(net, scaler, number % 8, dtype="bfloat16")
        losses.append(loss)
        scaler.step(optimizer)
        scaler.update()
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])


def test_fit_of_a_float32_model() -> None:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [layers.Dense(16, activation="relu"), layers.LayerNormalization(), layers.Dense(3)]
    )
    net.compile(optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = data(0, 64)[0].numpy()
    with unamp.autocast("cpu", dtype="bfloat16"):
        losses = net.fit(
            x, (x[:, 0] > 0).astype("int32"), epochs=5, batch_size=16, verbose=0
        ).history["loss"]
    assert losses[-1] < 0.95 * losses[0]
    assert {variable.value.dtype for variable in net.trainable_variables} == {torch.float32}
    assert unamp.current_policy() is None


def test_fit_of_a_decorated_model() -> None:
    net, optimizer = made(), optimizers.Adam(0.02)
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    net.compile(optimizer, "mse")
    x, y = data(0, 64)
    with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
        losses = net.fit(x.numpy(), y.numpy(), epochs=6, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
    assert {each.dtype for each in optimizer.variables} == {"float32", "int32"}
    assert net.layers[0].kernel.value.dtype == torch.bfloat16


def test_somebody_elses_change_is_taken_over() -> None:
    net, optimizer = made(), optimizers.SGD(0.0)
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    optimizer.build(net.trainable_variables)
    kernel = net.layers[0].kernel
    kernel.assign(torch.full_like(kernel.value, 0.5))
    optimizer.apply([torch.zeros_like(each.value) for each in net.trainable_variables])
    assert torch.equal(optimizer._trainable_variables[0].value, torch.full((6, 12), 0.5))
    assert torch.equal(kernel.value.float(), torch.full((6, 12), 0.5))


def test_weight_decay_leaves_out_what_it_is_told() -> None:
    net, optimizer = made(), optimizers.AdamW(0.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay([net.layers[0].kernel])
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    optimizer.build(net.trainable_variables)
    optimizer.learning_rate = 1.0
    before = values(net.trainable_variables)
    optimizer.apply([torch.zeros_like(each.value) for each in net.trainable_variables])
    after = values(net.trainable_variables)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[-2] * 0.5, after[-2])


def test_saved_and_loaded(tmp_path) -> None:
    net, optimizer, scaler = made(), optimizers.Adam(0.02), unamp.GradScaler(1024.0)
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    net.compile(optimizer, "mse")
    optimizer.build(net.trainable_variables)
    scaled_pass(net, scaler, 0, dtype="bfloat16")
    scaler.step(optimizer)
    net.save(tmp_path / "net.keras")
    again = keras.saving.load_model(tmp_path / "net.keras")
    assert same(values(net.variables), values(again.variables))
    assert same(values(optimizer.variables), values(again.optimizer.variables))
    assert type(again.optimizer).__mro__[2:] == type(optimizer).__mro__[2:]


def test_a_torch_optimizer_of_a_keras_model() -> None:
    net, scaler = made(), unamp.GradScaler(256.0)
    optimizer = torch.optim.SGD([each.value for each in net.trainable_variables], 0.1)
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16")
    before = values(net.trainable_variables)
    scaled_pass(net, scaler, 0, dtype="bfloat16")
    assert scaler.step(optimizer)
    assert not same(before, values(net.trainable_variables))
    assert net.layers[0].kernel.dtype == "bfloat16"


def test_refused() -> None:
    net, optimizer = made(), optimizers.SGD(0.1)
    with pytest.raises(unamp.NotExpressible, match="save_dtype='float32'"):
        unamp.decorate(net, level="O2", save_dtype="float32")
    with pytest.raises(TypeError, match="excluded_layers takes layers"):
        unamp.decorate(net, level="O2", excluded_layers="Dense")
    unamp.decorate(net, optimizer, level="O2", dtype="bfloat16", excluded_layers=net.layers[-1])
    assert net.layers[-1].kernel.dtype == "float32"
    with pytest.raises(ValueError, match="is bfloat16 already"):
        unamp.decorate(net, level="O2")
    with pytest.raises(ValueError, match="has been decorated already"):
        unamp.decorate(made(), optimizer, level="O2")
    begun = optimizers.SGD(0.1)
    begun.apply([torch.ones(2)], [keras.Variable([1.0, 1.0])])
    with pytest.raises(ValueError, match="has begun: it has taken 1 steps"):
        unamp.decorate(made(), begun, level="O2")


def test_no_rule_reaches_a_step_inside_a_region() -> None:
    one, other = (keras.Variable(torch.linspace(0.1, 1, 8)) for _ in range(2))
    gradient = torch.linspace(1, 0.3, 8)
    plain, inside = optimizers.Nadam(0.1), optimizers.Nadam(0.1)
    plain.apply([gradient], [one])
    with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
        inside.apply([gradient], [other])
    assert torch.equal(one.value, other.value)
