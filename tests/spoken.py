"""The dialects on every framework: examples from the frameworks' documentation.

Each framework's folder runs them on its own tensors and networks. A framework has the name of its
adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unamp
from unamp.adapter.registry import adapter_for
from unamp.dialects.mindspore import amp as mindspore_amp
from unamp.dialects.paddle import amp as paddle_amp
from unamp.dialects.torch import amp as torch_amp


def error_of(call: Callable[[], object]) -> type[Exception] | None:
    """Return the class of the error that a call raises, or None."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def paddles_example(
    framework: str, conv2d: Callable[[Any], Any], data: Any, a: Any, b: Any
) -> None:
    """Check `unamp.auto_cast` and `paddle.amp.auto_cast` around convolution, sums and products."""
    dtype_of = adapter_for(framework).dtype_of
    for region in (unamp.auto_cast, paddle_amp.auto_cast, paddle_amp.amp_guard):
        with region():
            assert dtype_of(conv2d(data)) == "float16"
        with region(enable=False):
            assert dtype_of(conv2d(data)) == "float32"
        with region(custom_black_list={"conv2d"}):
            assert dtype_of(conv2d(data)) == "float32"
        with region(custom_white_list={"elementwise_add"}):
            assert dtype_of(a + b) == "float16"
        with region(custom_white_list={"elementwise_add"}, level="O2"):
            assert dtype_of(a + b) == "float16"
            # Paddle's own region promotes
            assert dtype_of(a * b) == ("float16" if region is unamp.auto_cast else "float32")


def paddles_scaler_says_what_to_use(loss: Any, optimizer: Any) -> None:
    """Check Paddle's scaler where gradients are values, for which it has no argument."""
    scaler = paddle_amp.GradScaler()
    scaler.scale(loss)
    with pytest.raises(
        TypeError, match=r"use unamp.GradScaler, as in step\(optimizer, gradients=gradients\)"
    ):
        scaler.step(optimizer)


def torchs_example(
    framework: str, matmul: Callable[[Any, Any], Any], a: Any, b: Any, c: Any, d: Any
) -> None:
    """Check `torch.autocast` with an inner region that is off."""
    adapter = adapter_for(framework)
    with torch_amp.autocast("cpu", dtype="float16"):
        e = matmul(a, b)
        with torch_amp.autocast("cpu", enabled=False):
            f = matmul(c, adapter.cast(e, "float32"))
        g = matmul(d, f)
    assert [adapter.dtype_of(each) for each in (e, f, g)] == ["float16", "float32", "float16"]


def mindspores_example(
    framework: str, network: Any, x: Any, level: str, dtype: str, allowed: set[str]
) -> None:
    """Check `mindspore.amp.auto_mixed_precision` of a network that ends in a softmax.

    Args:
        framework: the framework of the network.
        network, x: the network, and its input.
        level: the level.
        dtype: the low dtype.
        allowed: the operations of the network except the softmax.
    """
    net = mindspore_amp.auto_mixed_precision(network, level, dtype)
    with unamp.trace() as trace:
        assert adapter_for(framework).dtype_of(net(x)) == "float32"
    layered = getattr(adapter_for(framework), "layered", None)
    if level in ("O2", "O3") and layered is not None and layered().stays(network):
        # the network itself was converted: alone, it returns the low dtype
        assert adapter_for(framework).dtype_of(network(x)) == dtype
    low = {"O0": set(), "O1": allowed}.get(level, {*allowed, "softmax"})
    assert {record.op for record in trace.records if record.compute == dtype} == low


def test_mindspores_scalers_on_gradients_that_are_values(framework: str) -> None:
    ops = adapter_for(framework).operations()
    w, scaler = (
        ops.tensor(np.float32([0.5, 2.0]), requires_grad=True),
        mindspore_amp.DynamicLossScaler(2**10, 2, 1),
    )
    _, gradients = ops.value_and_grad(lambda w: scaler.scale(ops["sum"](ops["mul"](w, w))), [w])
    assert ops.numpy(gradients[0]).tolist() == [1024.0, 4096.0]
    finite = mindspore_amp.all_finite(gradients)
    assert (ops.dtype(finite), bool(finite)) == ("bool", True)
    assert ops.numpy(scaler.unscale(gradients)[0]).tolist() == [1.0, 4.0]
    assert scaler.adjust(finite) is True
    assert scaler.scale_value == 2048.0
    not_finite = ops["cast"](ops.tensor(np.float32([1.0, np.nan])), dtype="bfloat16")
    assert scaler.adjust(mindspore_amp.all_finite([gradients[0], not_finite])) is False
    assert scaler.scale_value == 1024.0
    unscaled = scaler.unscale((ops["cast"](gradients[0], dtype="float16"), [None, not_finite]))
    half, [none, low] = unscaled
    assert (type(unscaled), ops.dtype(half), none, ops.dtype(low)) == (
        tuple,
        "float16",
        None,
        "bfloat16",
    )
    for bad in (3, (), (gradients[0], 3)):
        with pytest.raises(TypeError, match="all_finite takes"):
            mindspore_amp.all_finite(bad)
