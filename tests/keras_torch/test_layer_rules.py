"""`unamp.layer_policies` on Keras with PyTorch keeps the promises of `keras_ruled`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_ruled as shared
import numpy as np
import ruled
import torch
from keras_ruled import test_promises, test_what_is_saved_has_no_rules  # noqa: F401
from ruled import BF16, EXPECTED, F32, LOW, RULE

import unamp

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _gradients(loss: Callable[[], Any], network: Any) -> tuple[Any, Any]:
    network.zero_grad()
    value = loss()
    value.backward()
    return value.detach(), [variable.value.grad for variable in network.trainable_variables]


OF = ruled.Layers(
    lambda: shared.made(X),
    X,
    dtype=lambda tensor: str(tensor.dtype).removeprefix("torch."),
    numbers=lambda tensor: tensor.detach().float().numpy(),
    first="first",
    second="second",
    share=shared.share,
    low=lambda tensor: tensor.bfloat16(),
    losses=shared.losses(X, _gradients),
)


def test_compiled_models_follow_rules_in_a_region_and_without_one() -> None:
    network = OF.network()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert OF.dtypes(compiled) == [BF16] * 4
    for _ in range(2):
        with unamp.layer_policies(compiled, RULE):
            assert OF.dtypes(compiled) == EXPECTED
            assert OF.dtypes(compiled, region=False) == [F32] * 4
        assert OF.dtypes(compiled) == [BF16] * 4
    with unamp.layer_policies(network, {"**.wi": LOW}):
        assert OF.dtypes(compiled, region=False) == [BF16, F32, BF16, F32]
    assert OF.dtypes(compiled, region=False) == [F32] * 4


def test_a_compiled_fit_follows_rules() -> None:
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(4, name="a"), keras.layers.Dense(1, name="b")]
    )
    model.compile("sgd", "mse", jit_compile=True)
    x, y = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
    with unamp.layer_policies(model, {"b": F32}), unamp.autocast(dtype="bfloat16"):
        model.fit(x, y, verbose=0)
        assert str(model.predict(x, verbose=0).dtype) == F32


def test_exported_and_traced_models_have_their_rules() -> None:
    network = OF.network()
    with unamp.layer_policies(network, RULE), unamp.autocast(dtype="bfloat16"):
        exported = torch.export.export(network, (X,)).module()
        traced = torch.jit.trace(network, (X,), check_trace=False)
    assert [OF.dtype(each) for each in exported(X)] == EXPECTED
    assert [OF.dtype(each) for each in traced(X)] == EXPECTED


def test_modules_of_pytorch_and_layers_of_keras_in_one_another() -> None:
    wrapped = keras.layers.TorchModuleWrapper(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), name="wrapped"
    )
    model = keras.Sequential([keras.layers.Dense(4, name="dense"), wrapped], name="model")
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), model)
    network(X)
    rules = {"1.dense": F32, "1.wrapped.module.1": F32}
    with (
        unamp.layer_policies(network, rules) as found,
        unamp.autocast(dtype="bfloat16"),
        unamp.trace() as trace,
    ):
        network(X)
    assert dict(found.layers) == rules
    assert [(each.layer, each.compute) for each in trace.records if each.op == "linear"] == [
        ("Sequential.0", BF16),
        ("Sequential.1.dense", F32),
        ("Sequential.1.wrapped.module.0", BF16),
        ("Sequential.1.wrapped.module.1", F32),
    ]


def test_nothing_of_keras_stays_patched() -> None:
    network = OF.network()
    plain = keras.layers.Dense.call
    with unamp.layer_policies(network, RULE):
        assert "call" in vars(network.first.wo)
    assert keras.layers.Dense.call is plain
    assert "call" not in vars(network.first.wo)


def test_a_call_put_around_a_rule_stays_when_the_rule_goes() -> None:
    network = OF.network()
    rules = unamp.layer_policies(network, RULE)
    ruled_call, seen = network.first.wo.call, []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return ruled_call(x)

    network.first.wo.call = call
    assert OF.dtypes(network) == EXPECTED
    rules.remove()
    assert OF.dtypes(network) == [BF16] * 4
    assert len(seen) == 2


def test_a_keras_application() -> None:
    """Depthwise convolutions are float32 and others low, and each has a recorded gradient."""
    model = keras.applications.MobileNetV2(
        weights=None, input_shape=(32, 32, 3), classes=10, alpha=0.35
    )
    x = torch.randn(2, 32, 32, 3, generator=torch.Generator().manual_seed(0))
    with unamp.layer_policies(model, {":DepthwiseConv2D": F32, "predictions": F32}) as rules:
        assert len(rules.layers) == 18
        with unamp.trace(gradients=True) as trace:
            with unamp.autocast(dtype="bfloat16"):
                loss = model(x).sum()
            loss.backward()
    computed = {
        each.layer: (each.op, each.compute)
        for each in trace.records
        if "conv" in each.op or each.op == "linear"
    }
    assert set(computed.values()) == {("conv2d", BF16), ("depthwise_conv2d", F32), ("linear", F32)}
    assert {name for name, (_, dtype) in computed.items() if dtype == F32} == {
        f"Functional.{name}" for name in rules.layers
    }
    told = {
        trace.records[each.record].layer: each
        for each in trace.gradients
        if each.record is not None
    }
    assert computed.keys() <= told.keys()
    assert {told[name].dtype for name in computed if computed[name][1] == BF16} == {BF16}
    assert {each.left_out for each in trace.gradients} == {""}
