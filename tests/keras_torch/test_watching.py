"""The monitor follows Keras with PyTorch, where parameters hold their gradients."""

from __future__ import annotations

import differentiated
import keras
import numpy as np
import pytest
import torch
from watched import finds_the_layer_that_underflows, swallowed

import unamp

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def model() -> keras.Model:
    """Return a model whose layer `tiny` is behind a small factor.

    The factor makes the layer's gradient subnormal in float16.
    """
    keras.utils.set_random_seed(0)
    x, dense = keras.Input((8,)), keras.layers.Dense
    return keras.Model(
        x, dense(4, name="last")(dense(8, name="first")(x) + 1e-5 * dense(8, name="tiny")(x))
    )


def test_a_layer_that_underflows_is_found_by_its_name() -> None:
    network, optimizer, scaler = model(), keras.optimizers.SGD(1e-2), unamp.GradScaler(1.0)
    optimizer.build(network.trainable_variables)
    watch = unamp.watch(network, optimizer, scaler=scaler, every=1)

    def step() -> None:
        network.zero_grad()
        with unamp.autocast(dtype="float16"):
            loss = network(X).float().square().mean()
        scaler.scale(loss).backward()
        with watch.step():
            scaler.step(optimizer)
            scaler.update()

    finds_the_layer_that_underflows(watch, 2, step)
    layers = watch.history.samples[0].layers
    assert {each.layer: each.size for each in layers} == {"first": 72, "tiny": 72, "last": 36}


def test_low_variables_tell_what_rounding_swallows() -> None:
    keras.utils.set_random_seed(0)
    network = keras.Sequential([keras.layers.Dense(8, dtype=keras.DTypePolicy("bfloat16"))])
    network.build((None, 8))
    variables, optimizer = network.trainable_variables, keras.optimizers.SGD(1e-3)
    optimizer.build(variables)
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    network(X.bfloat16()).float().square().mean().backward()
    gradients = [each.value.grad for each in variables]
    before = [each.value.detach().clone() for each in variables]
    with watch.step():
        optimizer.apply(gradients, variables)
    after = [each.value.detach() for each in variables]
    flat = [
        np.concatenate([each.float().numpy().reshape(-1) for each in row]).tolist()
        for row in (before, gradients, after)
    ]
    found = watch.history.samples[0].layers[0].swallowed
    assert found == pytest.approx(swallowed(*flat))
    assert 0.0 < found < 1.0


def test_frozen_layers_are_not_looked_at_and_nothing_is_given() -> None:
    network = model()
    network.get_layer("first").trainable = False
    watch = unamp.watch(network)
    network(X).sum().backward()
    with watch.step():
        pass
    assert [each.layer for each in watch.history.samples[0].layers] == ["tiny", "last"]
    with pytest.raises(TypeError, match="hold their gradients: none can be given"):
        watch.step([])


def test_an_optimizer_that_was_not_built_is_named() -> None:
    network = model()
    watch = unamp.watch(network, keras.optimizers.SGD(1e-2))
    network(X).sum().backward()
    with pytest.raises(RuntimeError, match="does not know its variables yet"), watch.step():
        pass
    assert watch.steps == 0


def test_gradients_in_fit_are_told() -> None:
    network = model()
    network.compile("sgd", "mse")
    with unamp.trace(gradients=True) as trace, unamp.autocast(dtype="bfloat16"):
        network.fit(X.numpy(), np.zeros((16, 4), "float32"), batch_size=16, verbose=0)
    told = {
        trace.records[each.record].layer: each
        for each in trace.gradients
        if each.record is not None and trace.records[each.record].op == "linear"
    }
    assert {name.rpartition(".")[2] for name in told} == {"first", "tiny", "last"}
    assert {each.dtype for each in told.values()} == {"bfloat16"}
    assert {each.left_out for each in told.values()} == {""}


def test_parameters_have_their_gradients_in_a_trace() -> None:
    network = model()

    def run():
        network.zero_grad()
        (network(X).sum() + network(X * 2.0).square().sum()).backward()
        names = [
            f"Functional.{variable.path.replace('/', '.')}"
            for variable in network.trainable_variables
        ]
        found = (variable.value.grad.numpy() for variable in network.trainable_variables)
        return dict(zip(names, found, strict=True))

    differentiated.parameters_have_theirs(run)
