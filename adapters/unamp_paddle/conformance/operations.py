"""Paddle's binding of `unamp.adapter.Operations`: every operation by its canonical name.

NumPy arrays go in and come out. Canonical signatures are PyTorch's. Most of Paddle's functions take
their tensors in the same order; `_WRITTEN` holds adapted ones for the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional as F

from unamp.adapter import NamedOperations, Way
from unamp.adapter.layered_networks import LayeredNetworks
from unamp.adapter.tensor_kinds import TensorKind
from unamp.regions import autocast
from unamp.vocabulary import vocabulary
from unamp_paddle.conformance.layered import layered
from unamp_paddle.conformance.rare import RARE
from unamp_paddle.conformance.tensor_kinds import tensor_kinds
from unamp_paddle.conformance.ways import ways
from unamp_paddle.hooks import HOOKS
from unamp_paddle.spellings import named
from unamp_paddle.state import Tensor

_C_ops = HOOKS.load("paddle._C_ops")


class PaddleOperations(NamedOperations):
    """See `unamp.adapter.Operations`."""

    unreadable = (
        "a program of Paddle's has no place until kernels are chosen for one, which a build for "
        "CPUs refuses: Cannot use GPU because you have installed CPU version PaddlePaddle"
    )

    def __init__(self) -> None:
        super().__init__("paddle", _find)

    def layered(self) -> LayeredNetworks:
        """Return the network for checks of layer rules."""
        return layered()

    def tensor(
        self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False
    ) -> Tensor:
        """Return a tensor with the array's values, shape and dtype."""
        array = np.asarray(array)
        place = paddle.CPUPlace() if device == "cpu" else paddle.CUDAPlace(0)
        made = paddle.to_tensor(array, place=place)
        made.stop_gradient = not requires_grad
        return made

    def parameter(self, array: np.ndarray, *, device: str = "cpu") -> Tensor:
        """Return a tensor of the class of layers' parameters."""
        made = self.tensor(array, device=device)
        return paddle.create_parameter(
            made.shape, made.dtype, default_initializer=paddle.nn.initializer.Assign(made)
        )

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        """Change a parameter in place, with no policy in force: `paddle.assign` is an operation."""
        with autocast(enabled=False), paddle.no_grad():
            paddle.assign(self.tensor(array), output=parameter)

    def adam(self, array: np.ndarray, *, device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that takes one step of Adam with a gradient, and returns the result."""
        parameter = self.parameter(array, device=device)
        optimizer = paddle.optimizer.Adam(0.1, parameters=[parameter])

        def step(gradient: np.ndarray) -> np.ndarray:
            parameter.grad = self.tensor(gradient, device=device)
            optimizer.step()
            return self.numpy(parameter)

        return step

    def numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor's values; low dtypes arrive as float32."""
        values: np.ndarray = tensor.detach().numpy()
        if values.dtype == np.uint16:
            # Paddle's arrays hold bfloat16 as integers: the upper halves of float32 numbers.
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32) if values.dtype == np.float16 else values

    def dtype(self, tensor: Tensor) -> str:
        """Return the name of a tensor's dtype."""
        return str(tensor.dtype).removeprefix("paddle.")

    def tensor_kinds(self) -> tuple[TensorKind, ...]:
        """Return the kinds of tensor that are not one dense array."""
        return tensor_kinds()

    def ways(self) -> tuple[Way, ...]:
        """Return the ways in which Paddle runs a function."""
        return ways()

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], *, loss_scale: float = 1.0
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return ``function(*inputs)`` and the gradients of its scaled value.

        The gradient is None for an input that the value does not depend on.
        """
        leaves = [tensor.detach() for tensor in inputs]
        for leaf in leaves:
            leaf.stop_gradient = False
        value = function(*leaves)
        scaled = value if loss_scale == 1.0 else value * loss_scale
        scaled.backward()
        return value.detach(), [leaf.grad for leaf in leaves]


#: Operations whose function has the argument `axis` where the canonical one has `dim`.
_WITH_AXIS = frozenset(
    (
        "count_nonzero cross cummax cummin cumulative_trapezoid kthvalue linalg_vector_norm "
        "log_softmax logcumsumexp max min mode nanmean nanmedian nanquantile nansum quantile sort "
        "trapezoid"
    ).split()
)


def _find(op: str) -> Callable[..., Any] | None:
    if op in _WRITTEN:
        return _WRITTEN[op]
    for path in vocabulary()[op].spellings.get("paddle", ()):
        for candidate in (f"nn.functional.{path}", path, f"linalg.{path}"):
            if "." not in path or candidate == path:
                found = named(candidate)
                if callable(found) and not isinstance(found, type):
                    return _axis(found) if op in _WITH_AXIS else found
    return None


# --- functions with other signatures than PyTorch's -----------------------------------------------


def _axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose argument `dim` is the given function's `axis`."""

    def with_dim(*args: Any, dim: int, **kwargs: Any) -> Any:
        return function(*args, axis=dim, **kwargs)

    return with_dim


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: function(list(tensors))


def _pad(mode: str) -> Callable[..., Tensor]:
    layouts = {3: "NCL", 4: "NCHW", 5: "NCDHW"}
    return lambda input, padding: F.pad(
        input, list(padding), mode=mode, data_format=layouts[input.ndim]
    )


def _resize(mode: str) -> Callable[..., Tensor]:
    layouts = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
    return lambda input, size: F.interpolate(
        input, list(size), mode=mode, data_format=layouts[input.ndim]
    )


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(input, weight.t(), bias)


def _recurrent(mode: str, input: Tensor, states: list[Tensor], weights: Sequence[Tensor]) -> Any:
    """Run one layer, time first; ``weights`` are w_ih, w_hh, b_ih, b_hh."""
    out, _, last = _C_ops.rnn(
        input, states, list(weights), None, paddle.zeros([0], "uint8"), 0.0, False,
        input.shape[-1], weights[1].shape[1], 1, mode, 0, False,
    )  # fmt: skip
    return (out, *last)


def _cell(kind: type, input: Tensor, states: Any, weights: Sequence[Tensor]) -> Any:
    layer = _built(kind, input.shape[-1], weights[1].shape[1])
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    out, last = _with(layer, dict(zip(names, weights, strict=True)), input, states)
    return (out, *last[1:]) if isinstance(last, tuple) else out


@cache
def _built(kind: type, *args: Any) -> paddle.nn.Layer:
    # Only the layer's code is used: the caller gives the parameters (see `_with`).
    return kind(*args) if len(args) < 3 else kind(*args, dropout=0.0)


def _with(layer: paddle.nn.Layer, parameters: dict[str, Tensor], *inputs: Any) -> Any:
    """Return a layer's result with other parameters, which are given by their paths."""
    homes = dict(layer.named_sublayers(include_self=True))
    places = [
        (homes[path.rpartition(".")[0]].__dict__, path.rpartition(".")[2], value)
        for path, value in parameters.items()
    ]
    for home, name, value in places:
        home[name] = value  # Python finds it before the layer's own parameter of that name
    try:
        return layer(*inputs)
    finally:
        for home, name, _ in places:
            del home[name]


def _attention(
    prefix: str, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> dict[str, Tensor]:
    named = {f"{prefix}out_proj.weight": w_out.t(), f"{prefix}out_proj.bias": b_out}
    width = w_out.shape[0]
    for n, name in enumerate(("q_proj", "k_proj", "v_proj")):
        named[f"{prefix}{name}.weight"] = w_in[n * width : (n + 1) * width].t()
        named[f"{prefix}{name}.bias"] = b_in[n * width : (n + 1) * width]
    return named


def _batch_first(tensor: Tensor) -> Tensor:
    return tensor.transpose([1, 0, 2])


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, *weights: Tensor, heads: int
) -> Tensor:
    layer = _built(paddle.nn.MultiHeadAttention, query.shape[-1], heads)
    inputs = map(_batch_first, (query, key, value))
    return _batch_first(_with(layer, _attention("", *weights), *inputs))


def _feed_forward(weights: Sequence[Tensor]) -> dict[str, Tensor]:
    w1, b1, w2, b2, *norms = weights
    named = {"linear1.weight": w1.t(), "linear1.bias": b1}
    named |= {"linear2.weight": w2.t(), "linear2.bias": b2}
    for n in range(len(norms) // 2):
        named[f"norm{n + 1}.weight"], named[f"norm{n + 1}.bias"] = norms[2 * n : 2 * n + 2]
    return named


def _encoder_layer(input: Tensor, *weights: Tensor, heads: int) -> Tensor:
    """Run `paddle.nn.TransformerEncoderLayer` without dropout, time first.

    ``weights`` are in the order of torch's parameters.
    """
    layer = _built(paddle.nn.TransformerEncoderLayer, input.shape[-1], heads, weights[4].shape[0])
    parameters = _attention("self_attn.", *weights[:4]) | _feed_forward(weights[4:])
    return _batch_first(_with(layer, parameters, _batch_first(input)))


def _decoder_layer(target: Tensor, memory: Tensor, *weights: Tensor, heads: int) -> Tensor:
    """Run `paddle.nn.TransformerDecoderLayer` as `_encoder_layer` runs the encoder's."""
    layer = _built(paddle.nn.TransformerDecoderLayer, target.shape[-1], heads, weights[8].shape[0])
    parameters = (
        _attention("self_attn.", *weights[:4])
        | _attention("cross_attn.", *weights[4:8])
        | _feed_forward(weights[8:])
    )
    return _batch_first(_with(layer, parameters, _batch_first(target), _batch_first(memory)))


def _scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads_last = [tensor.transpose([0, 2, 1, 3]) for tensor in (query, key, value)]
    return F.scaled_dot_product_attention(*heads_last).transpose([0, 2, 1, 3])


def _adaptive_log_softmax(
    input: Tensor, target: Tensor, head: Tensor, tail_in: Tensor, tail_out: Tensor, *, cutoff: int
) -> Tensor:
    return F.adaptive_log_softmax_with_loss(
        input, target, head.t(), [[tail_in.t(), tail_out.t()]], [cutoff, cutoff + tail_out.shape[0]]
    )[0]


def _index(input: Tensor, *indices: Tensor) -> Tensor:
    return input[tuple(indices)] if len(indices) > 1 else input[indices[0]]


def _stft(input: Tensor, n_fft: int, *, return_complex: bool = True, center: bool = True) -> Tensor:
    return paddle.signal.stft(input, n_fft, center=center)


def _segment_pool(data: Tensor, lengths: Tensor) -> Tensor:
    ids = paddle.repeat_interleave(paddle.arange(lengths.shape[0]), lengths)
    return paddle.geometric.segment_sum(data, ids)


def _max_pool(name: str, rank: int, input: Tensor, kernel: int) -> Any:
    sizes = [kernel] * rank
    return getattr(_C_ops, name)(input, sizes, sizes, [0] * rank, False, False, False)


def _fractional_max_pool(
    pool: Callable[..., Tensor], input: Tensor, samples: Tensor, *, kernel: int, size: int
) -> Tensor:
    return pool(input, size, kernel_size=kernel, random_u=float(samples.flatten()[0]))


def _ctc_loss(log_probs: Tensor, targets: Tensor, *lengths: Tensor, reduction: str) -> Tensor:
    return F.ctc_loss(log_probs, targets.astype("int32"), *lengths, reduction=reduction)


def _real(input: Tensor) -> Tensor:
    return paddle.real(input) if input.is_complex() else input


def _std(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda input, *, dim, correction=1: function(input, axis=dim, unbiased=bool(correction))


def _chunked(input: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return list(paddle.split(input, input.shape[dim] // size, axis=dim))


def _fake_quantize_per_channel(
    input: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> Any:
    return _C_ops.fake_channel_wise_quantize_dequantize_abs_max(input, 8, 1, axis)


class _Joined(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, *results: Tensor) -> Any:
        return tuple(result.clone() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results all get a gradient, used or not.

    Without a gradient for each result, the backward of these functions crashes the process.
    """
    return lambda *args, **kwargs: _Joined.apply(*function(*args, **kwargs))


def _binary(
    function: Callable[..., Tensor], plain: Callable[[Any, Any], Any]
) -> Callable[..., Tensor]:
    """Return a function that computes with numbers by an operator: Paddle's take only tensors."""
    return lambda a, b: (
        function(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else plain(a, b)
    )


def _lu(input: Tensor) -> Any:
    return paddle.linalg.lu_unpack(*paddle.linalg.lu(input))


_WRITTEN: dict[str, Callable[..., Any]] = {
    "add": _binary(paddle.add, operator.add),
    "div": _binary(paddle.divide, operator.truediv),
    "mul": _binary(paddle.multiply, operator.mul),
    "pow": _binary(paddle.pow, operator.pow),
    "sub": _binary(paddle.subtract, operator.sub),
    "adaptive_log_softmax": _adaptive_log_softmax,
    "affine_grid": lambda theta, size: F.affine_grid(theta, list(size), align_corners=False),
    # Paddle's momentum is the share of the old statistics, PyTorch's that of the new ones.
    "batch_norm": lambda *tensors, training, momentum, eps=1e-5: F.batch_norm(
        *tensors, training=training, momentum=1.0 - momentum, epsilon=eps
    ),
    "bilinear": lambda a, b, weight, bias: F.bilinear(a, b, weight, bias.reshape([1, -1])),
    "block_diag": _listed(paddle.block_diag),
    "broadcast_tensors": _joined(_listed(paddle.broadcast_tensors)),
    "cartesian_prod": _listed(paddle.cartesian_prod),
    "cast": lambda input, dtype: input.astype(dtype),
    "circular_pad": _pad("circular"),
    "cpu": lambda input: input.cpu(),
    "ctc_loss": _ctc_loss,
    "depthwise_conv2d": lambda input, weight, bias=None: F.conv2d(
        input, weight, bias, groups=input.shape[1]
    ),
    "exponential": lambda input: paddle.Tensor.exponential_(input.clone(), 1.0),
    "fake_quantize_per_channel_affine": _fake_quantize_per_channel,
    "fft_c2c": lambda input: _C_ops.fft_c2c(input, [0], "backward", True),
    "fft_c2r": lambda input, n: _C_ops.fft_c2r(input, [1], "forward", False, n),
    "fft_r2c": lambda input: _C_ops.fft_r2c(input, [1], "backward", True, True),
    "fractional_max_pool2d": partial(_fractional_max_pool, F.fractional_max_pool2d),
    "fractional_max_pool3d": partial(_fractional_max_pool, F.fractional_max_pool3d),
    "frobenius_norm": lambda input, dim: _C_ops.frobenius_norm(input, list(dim), False, False),
    "grid_sample": lambda input, grid: F.grid_sample(input, grid, align_corners=False),
    "group_norm": lambda input, groups, weight, bias: F.group_norm(
        input, groups, weight=weight, bias=bias
    ),
    "gru": lambda input, h0, *weights: _recurrent("GRU", input, [h0], weights),
    "gru_cell": lambda input, h0, *weights: _cell(paddle.nn.GRUCell, input, h0, weights),
    # Looked up at each call: before 3.3 it is C++, and a region replaces the name alone.
    "gt": lambda a, b: paddle.gt(a, b),
    "huber_loss": lambda input, target, reduction: _C_ops.huber_loss(input, target, 1.0),
    "index": _index,
    "index_add": lambda input, dim, index, source: paddle.index_add(input, index, dim, source),
    "index_fill": lambda input, dim, index, value: paddle.index_fill(input, index, dim, value),
    "index_put": lambda input, index, values: paddle.index_put(input, (index,), values),
    "linear": _linear,
    "linalg_lu": _joined(_lu),
    "linalg_qr": _joined(paddle.linalg.qr),
    "linalg_slogdet": lambda input: tuple(paddle.linalg.slogdet(input).unbind(0)),
    "normal": lambda mean, std: paddle.normal(mean, std),
    "lstm": lambda input, h0, c0, *weights: _recurrent("LSTM", input, [h0, c0], weights),
    "lstm_cell": lambda input, h0, c0, *weights: _cell(
        paddle.nn.LSTMCell, input, (h0, c0), weights
    ),
    "lu_solve": lambda lu, pivots, other: paddle.linalg.lu_solve(other, lu, pivots),
    "max_pool2d_with_indices": partial(_max_pool, "max_pool2d_with_index", 2),
    "max_pool3d_with_indices": partial(_max_pool, "max_pool3d_with_index", 3),
    "lu_unpack": _joined(paddle.linalg.lu_unpack),
    "meshgrid": _joined(paddle.meshgrid),
    "multi_head_attention": _multi_head_attention,
    "polygamma": lambda n, input: paddle.polygamma(input, n),
    "rand": lambda size: paddle.rand([size]),
    "randint": lambda high, shape: paddle.randint(0, high, shape),
    "real": _real,
    "reflection_pad1d": _pad("reflect"),
    "reflection_pad2d": _pad("reflect"),
    "reflection_pad3d": _pad("reflect"),
    "replication_pad1d": _pad("replicate"),
    "replication_pad2d": _pad("replicate"),
    "replication_pad3d": _pad("replicate"),
    "rms_norm": lambda input, shape, weight: paddle.nn.functional.rms_norm(input, shape, weight),
    "rnn": lambda input, h0, *weights: _recurrent("RNN_TANH", input, [h0], weights),
    "rnn_cell": lambda input, h0, *weights: _cell(paddle.nn.SimpleRNNCell, input, h0, weights),
    "scaled_dot_product_attention": _scaled_dot_product_attention,
    "segment_pool": _segment_pool,
    "select": lambda input, dim, index: input[(slice(None),) * dim + (index,)],
    "slice": lambda input, dim, start, end: paddle.slice(input, [dim], [start], [end]),
    "slice_scatter": lambda input, values, dim, start, end: paddle.slice_scatter(
        input, values, [dim], [start], [end], [1]
    ),
    "split": _chunked,
    "std": _std(paddle.std),
    "stft": _stft,
    "tensordot": lambda a, b, dims: paddle.tensordot(a, b, axes=dims),
    "transformer_decoder_layer": _decoder_layer,
    "transformer_encoder_layer": _encoder_layer,
    "uniform": lambda input: paddle.uniform(input.shape, min=0.0, max=1.0),
    "upsample_bicubic2d": _resize("bicubic"),
    "upsample_bilinear2d": _resize("bilinear"),
    "upsample_linear1d": _resize("linear"),
    "upsample_nearest2d": _resize("nearest"),
    "upsample_trilinear3d": _resize("trilinear"),
    "var": _std(paddle.var),
    **RARE,
}
