"""Layers that compute inside one fused operator, or inside C++ code, follow the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unamp

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def rounding(result: Tensor, exact: Tensor) -> float:
    """Return the error of a result, relative to the size of the exact one.

    One rounding is 2**-9 in bfloat16, 2**-24 in float32.
    """
    return (
        (result.double() - exact.double()).abs().max() / exact.abs().max().clamp(min=1e-9)
    ).item()


def is_float32(result: Tensor, exact: Tensor) -> bool:
    """Return whether the numbers, not only the dtype, are those of float32."""
    return result.dtype == F32 and rounding(result, exact) < 2**-17


def is_low(result: Tensor, exact: Tensor, low: torch.dtype) -> bool:
    """Return whether the numbers, not only the dtype, are those of a low precision."""
    return result.dtype == low and 2**-16 < rounding(result, exact) < (
        2**-4 if low is BF16 else 2**-7
    )


# --- attention ------------------------------------------------------------------------------------


def attention(training: bool) -> tuple[nn.MultiheadAttention, Tensor]:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    return layer, torch.randn(2, 5, 16)


@each_dtype
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_multi_head_attention_is_low(
    training: bool, grad: bool, need_weights: bool, dtype: str
) -> None:
    layer, x = attention(training)
    with torch.no_grad():
        exact, exact_weights = (
            copy.deepcopy(layer).double().train()(*[x.double()] * 3, need_weights=need_weights)
        )
    # In eval mode without gradients torch takes its fast path: one fused operator, where autocast
    # is off.
    with unamp.autocast("cpu", dtype), torch.set_grad_enabled(grad):
        out, weights = layer(x, x, x, need_weights=need_weights)
    assert is_low(out, exact, LOW[dtype])
    assert (weights is None) is not need_weights
    if need_weights:
        assert rounding(weights, exact_weights) < 2**-5


@pytest.mark.parametrize("denied", ["multi_head_attention", "linear"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_denied_multi_head_attention_is_float32_by_its_numbers(
    training: bool, need_weights: bool, denied: str
) -> None:
    layer, x = attention(training)
    deny = (
        [denied, "scaled_dot_product_attention", "bmm", "baddbmm", "matmul", "softmax"]
        if denied == "linear"
        else denied
    )
    with torch.no_grad():
        exact, _ = copy.deepcopy(layer).double().train()(*[x.double()] * 3)
        with unamp.autocast("cpu", deny=deny):
            out, _ = layer(x, x, x, need_weights=need_weights)
    assert is_float32(out, exact)


def test_a_list_reaches_inside_multi_head_attention() -> None:
    layer, x = attention(training=True)
    with unamp.autocast("cpu", deny="linear"), unamp.trace() as trace:
        layer(x, x, x, need_weights=False)
    computed = {r.op: r.compute for r in trace.records}
    assert computed["linear"] == "float32"
    assert computed["scaled_dot_product_attention"] == "bfloat16"


def test_multi_head_attention_gradients() -> None:
    layer, x = attention(training=True)
    x.requires_grad_()
    with unamp.autocast("cpu"):
        out, _ = layer(x, x, x)
    out.float().square().mean().backward()
    reference = copy.deepcopy(layer).double()
    reference.zero_grad()
    double = x.detach().double().requires_grad_()
    reference(double, double, double)[0].square().mean().backward()
    assert x.grad.dtype == F32
    assert rounding(x.grad, double.grad) < 2**-4
    for p, q in zip(layer.parameters(), reference.parameters(), strict=True):
        assert p.grad.dtype == F32
        assert torch.allclose(p.grad.double(), q.grad, atol=0.02 * q.grad.abs().max().item() + 1e-3)


@each_dtype
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_transformer_encoder_layer(training: bool, grad: bool, dtype: str) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        exact = copy.deepcopy(layer).double().train()(x.double())
    with unamp.autocast("cpu", dtype), torch.set_grad_enabled(grad):
        out = layer(x)
    assert 2**-16 < rounding(out, exact) < 2**-4
    everything = (
        "transformer_encoder_layer multi_head_attention linear scaled_dot_product_attention bmm "
        "matmul addmm baddbmm"
    ).split()
    with unamp.autocast("cpu", dtype, deny=everything), torch.set_grad_enabled(grad):
        assert is_float32(layer(x), exact)
    assert layer(x).dtype == F32


def test_transformer_encoder_with_padding_mask_in_eval() -> None:
    layer = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2
    ).eval()
    x, mask = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        exact = layer(x, src_key_padding_mask=mask)
        with unamp.autocast("cpu"):
            out = layer(x, src_key_padding_mask=mask)
    assert out.shape == exact.shape
    assert rounding(out[0], exact[0]) < 2**-4


@each_dtype
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_scaled_dot_product_attention(causal: bool, grad: bool, dtype: str) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=grad) for _ in range(3))
    low = LOW[dtype]
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    with unamp.autocast("cpu", dtype):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mixed = F.scaled_dot_product_attention(q.to(low), k, v.to(low), is_causal=causal)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(5, 5))
    assert is_low(out, exact, low)
    assert torch.equal(out, mixed)
    assert masked.dtype == low
    with unamp.autocast("cpu", dtype, deny="scaled_dot_product_attention"):
        denied = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert is_float32(denied, exact)
        assert F.scaled_dot_product_attention(q.to(low), k.to(low), v.to(low)).dtype == F32
    if grad:
        (denied.sum() + out.float().sum()).backward()
        assert q.grad.dtype == k.grad.dtype == v.grad.dtype == F32


# --- recurrent layers -----------------------------------------------------------------------------

RECURRENT: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
}


def outputs(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [t for part in result for t in outputs(part)]


@each_dtype
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": True}],
    ids=str,
)
@pytest.mark.parametrize("op", RECURRENT)
def test_recurrent_layers_are_low_as_one_operation(
    op: str, options: dict[str, Any], grad: bool, dtype: str
) -> None:
    layer, x = RECURRENT[op](6, 8, **options), torch.randn(4, 3, 6)
    with torch.no_grad():
        exact = outputs(copy.deepcopy(layer).double()(x.double()))
    with unamp.autocast("cpu", dtype), torch.set_grad_enabled(grad):
        found = outputs(layer(x))
    for result, reference in zip(found, exact, strict=True):
        assert is_low(result, reference, LOW[dtype])
    if grad:
        sum(t.float().sum() for t in found).backward()
        assert {p.grad.dtype for p in layer.parameters()} == {F32}


@each_dtype
@pytest.mark.parametrize("denied", ["itself", "linear"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("op", RECURRENT)
def test_denied_recurrent_layers_are_float32_by_their_numbers(
    op: str, grad: bool, denied: str, dtype: str
) -> None:
    layer, x = RECURRENT[op](6, 8, num_layers=2), torch.randn(4, 3, 6)
    with torch.no_grad():
        exact = outputs(copy.deepcopy(layer).double()(x.double()))
    with (
        unamp.autocast("cpu", dtype, deny=op if denied == "itself" else denied),
        torch.set_grad_enabled(grad),
    ):
        found = outputs(layer(x))
        from_low = outputs(layer(x.to(LOW[dtype])))
    for result, reference in zip(found, exact, strict=True):
        assert is_float32(result, reference)
    assert {t.dtype for t in from_low} == {F32}
    if grad:
        sum(t.sum() for t in found).backward()
        assert {p.grad.dtype for p in layer.parameters()} == {F32}


@pytest.mark.parametrize("op", RECURRENT)
def test_recurrent_layers_take_packed_sequences_and_states(op: str) -> None:
    layer, x = RECURRENT[op](6, 8), torch.randn(4, 3, 6)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1]))
    state = torch.zeros(1, 3, 8)
    with unamp.autocast("cpu"):
        out = layer(packed)[0]
        unpacked, lengths = nn.utils.rnn.pad_packed_sequence(out)
        with_state = layer(x, (state, state) if op == "lstm" else state)[0]
    assert unpacked.dtype == with_state.dtype == BF16
    assert lengths.tolist() == [4, 3, 1]
    assert torch.allclose(unpacked[0].float(), with_state[0].float(), atol=0.02)


CELLS: dict[str, Callable[[], nn.RNNCellBase]] = {
    "lstm_cell": lambda: nn.LSTMCell(6, 8),
    "gru_cell": lambda: nn.GRUCell(6, 8),
    "rnn_cell": lambda: nn.RNNCell(6, 8),
    "rnn_cell relu": lambda: nn.RNNCell(6, 8, nonlinearity="relu"),
}


@each_dtype
@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells(name: str, dtype: str) -> None:
    cell, x, op = CELLS[name](), torch.randn(3, 6), name.split()[0]
    with torch.no_grad():
        exact = outputs(copy.deepcopy(cell).double()(x.double()))
    with unamp.autocast("cpu", dtype):
        for result, reference in zip(outputs(cell(x)), exact, strict=True):
            assert is_low(result, reference, LOW[dtype])
    for deny in (op, "linear"):
        with unamp.autocast("cpu", dtype, deny=deny):
            for result, reference in zip(outputs(cell(x)), exact, strict=True):
                assert is_float32(result, reference)


# --- the others -----------------------------------------------------------------------------------


@each_dtype
def test_batch_norm_training_follows_its_input_and_keeps_float32_statistics(dtype: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x, low = torch.randn(4, 3, 8, 8), LOW[dtype]
    with unamp.autocast("cpu", dtype):
        activation = model[0](x)
        out = model(x)
    assert activation.dtype == out.dtype == low
    norm = model[1]
    assert norm.num_batches_tracked == 1
    assert norm.running_mean.dtype == norm.running_var.dtype == F32
    batch = activation.detach().float()
    assert torch.allclose(norm.running_mean, 0.1 * batch.mean((0, 2, 3)), atol=1e-4)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * batch.var((0, 2, 3)), atol=1e-4)
    out.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {F32}


def test_batch_norm_denied_is_float32() -> None:
    layer, x = nn.BatchNorm1d(4), torch.randn(8, 4).bfloat16()
    with unamp.autocast("cpu", deny="batch_norm"):
        out = layer(x)
    assert torch.equal(out, nn.BatchNorm1d(4)(x.float()))


def test_embedding_layers() -> None:
    table, bag, index = nn.Embedding(10, 4), nn.EmbeddingBag(10, 4), torch.tensor([[1, 2], [3, 9]])
    with unamp.autocast("cpu"):
        assert table(index).dtype == bag(index).dtype == F32
        assert F.linear(table(index), torch.rand(2, 4)).dtype == BF16
    with unamp.autocast("cpu", level="O2"):
        out = table(index)
        assert torch.equal(out, table.weight.detach().bfloat16()[index])
        out.float().sum().backward()
    assert table.weight.grad.dtype == F32
    assert table.weight.grad.sum() == 16


@each_dtype
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1),
        lambda: nn.Conv2d(3, 6, 3, groups=3, dilation=2),
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        lambda: nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"),
    ],
    ids=["transposed", "grouped", "reflect", "circular"],
)
def test_convolutions_of_every_kind(layer: Callable[[], nn.Module], dtype: str) -> None:
    conv, x, low = layer(), torch.randn(2, 3, 9, 9), LOW[dtype]
    with unamp.autocast("cpu", dtype):
        out = conv(x)
    assert torch.equal(out, copy.deepcopy(conv).to(low)(x.to(low)))
    out.float().sum().backward()
    assert conv.weight.grad.dtype == F32


def test_a_network_trains_at_every_level() -> None:
    x, target = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
    for level in ("O0", "OD", "O1", "O2", "O3"):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(8),
            nn.LayerNorm(8),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(8, 3),
        )
        optimizer = None
        losses = []
        for _ in range(25):
            with unamp.autocast("cpu", level=level):
                loss = F.cross_entropy(model(x), target)
            optimizer = optimizer or torch.optim.Adam(model.parameters(), 0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0], level
        assert {p.grad.dtype for p in model.parameters()} == {F32}


def test_spectral_and_weight_norm_parametrizations() -> None:
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        layer = wrap(nn.Linear(6, 5))
        with unamp.autocast("cpu"):
            out = layer(torch.randn(3, 6))
        assert out.dtype == BF16
        out.float().sum().backward()
        assert {p.grad.dtype for p in layer.parameters()} == {F32}


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize(("level", "result"), [("O1", BF16), ("O2", BF16), ("OD", F32)])
def test_weight_norm_of_low_parameters(wrap: Any, level: Any, result: torch.dtype) -> None:
    layer = wrap(nn.Linear(6, 5)).bfloat16()
    v, g = sorted((p for p in layer.parameters() if p.dim() == 2), key=lambda p: -p.shape[1])
    exact = v.double() * (g.double() / v.double().norm(dim=1, keepdim=True))
    with unamp.autocast("cpu", level=level):
        weight, out = torch._weight_norm(v, g, 0), layer(torch.randn(3, 6))
    assert (weight.dtype, out.dtype) == (result, BF16)
    torch.testing.assert_close(
        weight.double(), exact, rtol=0.01 if result is BF16 else 1e-6, atol=0.0
    )
    out.float().sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {BF16}


@pytest.mark.parametrize("low", [BF16, torch.float16])
@pytest.mark.parametrize(
    ("level", "dtype"), [("O1", "float32"), ("O2", ""), ("O2", "float32"), ("O3", ""), ("OD", "")]
)
@pytest.mark.parametrize("training", [True, False])
def test_low_norms_with_running_statistics(
    low: torch.dtype, level: Any, dtype: str, training: bool
) -> None:
    torch.manual_seed(0)
    exact = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
    )
    model = copy.deepcopy(exact.train(training)).to(low)
    x = torch.randn(4, 3, 6, 6)
    with unamp.autocast("cpu", dtype or low, level=level):
        out = model(x.to(low))
    torch.testing.assert_close(out.float(), exact(x), rtol=0.0, atol=0.08)
    for name, buffer in exact.named_buffers():
        updated = model.get_buffer(name)
        assert updated.dtype == (low if buffer.is_floating_point() else buffer.dtype)
        torch.testing.assert_close(updated.to(buffer.dtype), buffer, rtol=0.01, atol=0.01)
    out.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {low}
