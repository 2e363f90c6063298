"""A region reaches all forward functions and layers, under any preset."""

import types

import paddle
import pytest
from paddle.nn import functional as F
from unamp_paddle import listing

import unamp
from unamp import Policy, Rule, policy_region

LOW = {"float16": paddle.float16, "bfloat16": paddle.bfloat16}


def test_every_forward_function_is_reached_and_put_back():
    functions = {name: vars(paddle._C_ops)[name] for name in listing.forward()}
    assert len(functions) > 600
    assert all(getattr(paddle._C_ops, name) is function for name, function in functions.items())
    with policy_region(Policy()):
        instead = {name: getattr(paddle._C_ops, name) for name in functions}
    assert all(isinstance(function, types.FunctionType) for function in instead.values())
    assert all(getattr(paddle._C_ops, name) is function for name, function in functions.items())


@pytest.mark.parametrize("dtype", list(LOW))
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_transformer_trains(level, dtype):
    model = paddle.nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
    source, target = paddle.rand([2, 3, 8]), paddle.rand([2, 4, 8])
    mask = model.generate_square_subsequent_mask(4)
    with unamp.trace() as trace, policy_region(Policy(level, dtype)):
        out = model(source, target, tgt_mask=mask)
        loss = out.astype("float32").square().mean()
    loss.backward()
    assert {r.compute for r in trace.records if r.op in ("linear", "matmul")} == {dtype}
    softmax = dtype if Policy(level, dtype).decide("softmax") is Rule.LOW else "float32"
    assert {r.compute for r in trace.records if r.op == "softmax"} == {softmax}
    assert {p.grad.dtype for p in model.parameters()} == {paddle.float32}
    exact = model(source, target, tgt_mask=mask)
    assert float((out.astype("float32") - exact).abs().max()) < (
        0.2 if dtype == "bfloat16" else 0.03
    )
    assert not bool((out.astype("float32") == exact).all())


LOOKING = {
    "nan_to_num": paddle.nan_to_num,
    "sgn": paddle.sgn,
    "irfft": lambda x: paddle.fft.irfft(x, 4),
    "take_along_axis": lambda x: paddle.take_along_axis(x, paddle.zeros([4, 1], "int64"), 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x.unsqueeze(0), 2),
}


@pytest.mark.parametrize("dtype", list(LOW))
@pytest.mark.parametrize("name", LOOKING)
def test_functions_that_look_at_dtypes_take_low_tensors(name, dtype):
    h = paddle.rand([4, 4]).astype(dtype)
    with policy_region(Policy("O1", dtype, preset="none")):
        assert LOOKING[name](h).dtype == LOW[dtype]


@pytest.mark.parametrize("dtype", list(LOW))
@pytest.mark.parametrize("level", ["O2", "O3", "OD"])
def test_what_is_made_keeps_its_dtype(level, dtype):
    with policy_region(Policy(level, dtype)):
        made = [
            paddle.audio.functional.get_window("hann", 16),
            paddle.fft.fftfreq(8),
            paddle.vander(paddle.rand([4]), 3),
        ]
        made += [F.alpha_dropout(paddle.rand([4, 4]), 0.5)]
        made += [paddle.hann_window(8)] if hasattr(paddle, "hann_window") else []  # from 3.3 on
    assert {tensor.dtype for tensor in made if tensor.dtype != paddle.float64} == {paddle.float32}


@pytest.mark.parametrize("dtype", list(LOW))
def test_paddle_mul_multiplies(dtype):
    # The kernel `mul`, and the entry on Paddle's list, is a matrix product.
    x = paddle.rand([4, 4])
    with policy_region(Policy("O1", dtype, preset="paddle")):
        assert paddle.mul(x, x).dtype == paddle.float32
    with policy_region(Policy("O1", dtype, allow=[paddle.mul])):
        assert paddle.mul(x, x).dtype == paddle.multiply(x, x).dtype == LOW[dtype]
