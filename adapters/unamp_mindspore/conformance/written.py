"""Operations whose signature in MindSpore is not the canonical one; for `operations`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mindspore
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.ops import auto_generate

from unamp_mindspore.conformance.layers import built
from unamp_mindspore.conformance.rare import RARE
from unamp_mindspore.state import DTYPES

_INT32 = mindspore.int32


# --- layers with the caller's parameters ----------------------------------------------------------


def _with(layer: nn.Cell, parameters: dict[str, Any], *inputs: Any) -> Any:
    """Return a layer's result with other parameters, which are given by their paths."""
    homes = dict(layer.cells_and_names())
    places = [
        (homes[path.rpartition(".")[0]].__dict__, path.rpartition(".")[2], value)
        for path, value in parameters.items()
    ]
    before = [(home, name, home[name]) for home, name, _ in places if name in home]
    for home, name, value in places:
        home[name] = value  # Python finds it before the layer's own parameter of that name
    try:
        return layer(*inputs)
    finally:
        for home, name, _ in places:
            del home[name]
        for home, name, value in before:
            home[name] = value


def _conv_transpose(
    kind: type, input: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1
) -> Tensor:
    size = tuple(weight.shape[2:])
    if len(size) == 1:
        weight = weight.expand_dims(2)
    layer = built(
        kind, weight.shape[0], weight.shape[1], size if len(size) > 1 else size[0],
        stride=stride, pad_mode="valid", has_bias=bias is not None,
    )  # fmt: skip
    return _with(
        layer, {"weight": weight} if bias is None else {"weight": weight, "bias": bias}, input
    )


# MindSpore's compiler reads these three: they have no annotations, and no code in common.
def _conv1d(input, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
    return ops.conv1d(input, weight, bias, stride, "pad", padding, dilation, groups)


def _conv2d(input, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
    return ops.conv2d(input, weight, bias, stride, "pad", padding, dilation, groups)


def _conv3d(input, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
    return ops.conv3d(input, weight, bias, stride, "pad", padding, dilation, groups)


def _recurrent(kind: type, input: Tensor, states: Any, weights: Sequence[Tensor]) -> Any:
    """Run one layer, time first; ``weights`` are w_ih, w_hh, b_ih, b_hh."""
    if input.dtype is mindspore.float64:
        raise TypeError(
            "MindSpore has no recurrent layers in float64; its kernel for LSTM ends the process"
        )
    layer = built(kind, input.shape[-1], weights[1].shape[1])
    names = ("w_ih_list", "w_hh_list", "b_ih_list", "b_hh_list")
    lists = {name: (weight,) for name, weight in zip(names, weights, strict=True)}
    single = dict(
        zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True)
    )
    out, last = _with(layer, lists | single, input, states)
    return (out, *last) if isinstance(last, tuple) else (out, last)


def _cell(kind: type, input: Tensor, states: Any, weights: Sequence[Tensor]) -> Any:
    layer = built(kind, input.shape[-1], weights[1].shape[1])
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return _with(layer, dict(zip(names, weights, strict=True)), input, states)


def _embedding(input: Tensor, weight: Tensor) -> Tensor:
    return _with(built(nn.Embedding, *weight.shape), {"embedding_table": weight}, input)


def _attention(
    prefix: str, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> dict[str, Tensor]:
    names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    return {
        f"{prefix}{name}": value
        for name, value in zip(names, (w_in, b_in, w_out, b_out), strict=True)
    }


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, *weights: Tensor, heads: int
) -> Tensor:
    layer = built(nn.MultiheadAttention, query.shape[-1], heads)
    return _with(layer, _attention("", *weights), query, key, value)[0]


def _feed_forward(weights: Sequence[Tensor]) -> dict[str, Tensor]:
    w1, b1, w2, b2, *norms = weights
    found = {"dense1.weight": w1, "dense1.bias": b1, "dense2.weight": w2, "dense2.bias": b2}
    for n in range(len(norms) // 2):
        found[f"norm{n + 1}.gamma"], found[f"norm{n + 1}.beta"] = norms[2 * n : 2 * n + 2]
    return found


def _encoder_layer(input: Tensor, *weights: Tensor, heads: int) -> Tensor:
    layer = built(
        nn.TransformerEncoderLayer, input.shape[-1], heads, weights[4].shape[0], dropout=0.0
    )
    return _with(layer, _attention("self_attn.", *weights[:4]) | _feed_forward(weights[4:]), input)


def _decoder_layer(target: Tensor, memory: Tensor, *weights: Tensor, heads: int) -> Tensor:
    layer = built(
        nn.TransformerDecoderLayer, target.shape[-1], heads, weights[8].shape[0], dropout=0.0
    )
    parameters = _attention("self_attn.", *weights[:4]) | _attention(
        "multihead_attn.", *weights[4:8]
    )
    return _with(layer, parameters | _feed_forward(weights[8:]), target, memory)


# --- norms ----------------------------------------------------------------------------------------


def _batch_norm(
    input: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, *,
    training: bool, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    statistics = (
        Parameter(mean, name="mean", requires_grad=False),
        Parameter(var, name="var", requires_grad=False),
    )
    result = ops.batch_norm(
        input, *statistics, weight, bias, training=training, momentum=momentum, eps=eps
    )
    for theirs, updated in zip((mean, var), statistics, strict=True):
        theirs.copy_(updated)  # MindSpore updates parameters alone; the caller's are tensors
    return result


def _instance_norm(
    input: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, *, use_input_stats: bool
) -> Tensor:
    kinds = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    return _with(built(kinds[input.ndim], input.shape[1]), {"gamma": weight, "beta": bias}, input)


def _layer_norm(
    input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, *, eps: float = 1e-5
) -> Tensor:
    layer = built(nn.LayerNorm, tuple(shape), -len(shape), -len(shape), epsilon=eps)
    return _with(layer, {"gamma": weight, "beta": bias}, input)


# --- the others -----------------------------------------------------------------------------------


def _index(input: Tensor, *indices: Tensor) -> Tensor:
    return input[tuple(indices)] if len(indices) > 1 else input[indices[0]]


def _chunked(input: Tensor, size: int, dim: int = 0) -> Any:
    return ops.split(input, size, axis=dim)


def _pooled(kind: type, input: Tensor, kernel: int) -> Tensor:
    return built(kind, kernel, kernel)(input)


def _pad(kinds: str, input: Tensor, padding: Sequence[int]) -> Tensor:
    return built(getattr(nn, kinds.format(input.ndim - 2)), tuple(padding))(input)


def _resize(kind: Any, input: Tensor, size: Sequence[int]) -> Tensor:
    return kind(input, tuple(size))


def _interpolate(input: Tensor, *, scale_factor: float, mode: str) -> Tensor:
    return ops.interpolate(input, tuple(int(n * scale_factor) for n in input.shape[2:]), mode=mode)


def _fractional_max_pool(
    pool: Callable[..., Tensor], input: Tensor, samples: Tensor, *, kernel: int, size: int
) -> Tensor:
    return pool(input, kernel, output_size=size, _random_samples=samples)


def _ctc_loss(log_probs: Tensor, *targets_and_lengths: Tensor, reduction: str) -> Tensor:
    return ops.ctc_loss(log_probs, *targets_and_lengths, reduction=reduction)[0]


def _segment_pool(data: Tensor, lengths: Tensor) -> Tensor:
    ids = [n for n, length in enumerate(lengths.asnumpy().tolist()) for _ in range(length)]
    return ops.SegmentSum()(data, Tensor(ids, _INT32))


def _real(input: Tensor) -> Tensor:
    return ops.real(input) if input.is_complex() else input


def _std(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda input, *, dim, correction=1: function(input, axis=dim, ddof=correction)


def _binary(
    function: Callable[..., Tensor], plain: Callable[[Any, Any], Any]
) -> Callable[..., Tensor]:
    return lambda a, b: (
        function(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else plain(a, b)
    )


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tensors, *, dim=0: function(list(tensors), axis=dim)


WRITTEN: dict[str, Callable[..., Any]] = {
    "add": _binary(ops.add, operator.add),
    "div": _binary(ops.div, operator.truediv),
    "mul": _binary(ops.mul, operator.mul),
    "sub": _binary(ops.sub, operator.sub),
    "as_strided": lambda input, size, stride: auto_generate.AsStrided()(
        input, tuple(size), tuple(stride)
    ),
    "all": lambda input, *, dim: ops.all(input, axis=dim),
    "any": lambda input, *, dim: ops.any(input, axis=dim),
    "adaptive_avg_pool2d": lambda input, size: ops.adaptive_avg_pool2d(input, tuple(size)),
    "adaptive_avg_pool3d": lambda input, size: ops.adaptive_avg_pool3d(input, tuple(size)),
    "affine_grid": lambda theta, size: ops.affine_grid(theta, tuple(size), align_corners=False),
    "avg_pool1d": lambda input, size, stride=None, padding=0: ops.avg_pool1d(
        input, size, stride or size, padding
    ),
    "avg_pool2d": lambda input, size, stride=None, padding=0: ops.avg_pool2d(
        input, size, stride or size, padding
    ),
    "avg_pool3d": lambda input, size, stride=None, padding=0: ops.avg_pool3d(
        input, size, stride or size, padding
    ),
    "bartlett_window": lambda size: ops.bartlett_window(Tensor(size)),
    "batch_norm": _batch_norm,
    "blackman_window": lambda size: ops.blackman_window(Tensor(size)),
    "bucketize": lambda input, boundaries: ops.bucketize(
        input, boundaries.astype(mindspore.float32).asnumpy().tolist()
    ),
    "cat": _joined(ops.cat),
    "cast": lambda input, dtype: input.astype(DTYPES.get(dtype, getattr(mindspore, dtype))),
    "complex": lambda real, imag: ops.Complex()(real, imag),
    "constant_pad_nd": lambda input, padding: built(nn.ConstantPad1d, tuple(padding), 0.0)(input),
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "conv3d": _conv3d,
    "conv_transpose1d": partial(_conv_transpose, nn.Conv1dTranspose),
    "conv_transpose2d": partial(_conv_transpose, nn.Conv2dTranspose),
    "conv_transpose3d": partial(_conv_transpose, nn.Conv3dTranspose),
    "count_nonzero": lambda input, *, dim: ops.count_nonzero(input, axis=dim),
    "ctc_loss": _ctc_loss,
    "embedding": _embedding,
    "gather": lambda input, dim, index: ops.gather_elements(input, dim, index),
    "fold": lambda input, size, kernel: ops.fold(input, Tensor(size, _INT32), kernel),
    "fractional_max_pool2d": partial(_fractional_max_pool, ops.fractional_max_pool2d),
    "fractional_max_pool3d": partial(_fractional_max_pool, ops.fractional_max_pool3d),
    "full": lambda size, value: ops.full(tuple(size), value, dtype=mindspore.float32),
    "gru": lambda input, h0, *weights: _recurrent(nn.GRU, input, h0, weights),
    "gru_cell": lambda input, h0, *weights: _cell(nn.GRUCell, input, h0, weights),
    "index": _index,
    "index_add": lambda input, dim, index, source: mint.index_add(
        input, dim, index.astype(_INT32), source
    ),
    "index_fill": lambda input, dim, index, value: ops.index_fill(
        input, dim, index.astype(_INT32), value
    ),
    "index_put": lambda input, index, values: input.index_put((index,), values),
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "interpolate": _interpolate,
    "linalg_svd": lambda input: tuple(ops.svd(input)[n] for n in (1, 0, 2)),
    "leaky_relu": lambda input, *, negative_slope=0.01: ops.leaky_relu(input, negative_slope),
    "linear": ops.dense,
    "local_response_norm": lambda input, size, alpha: ops.lrn(
        input.expand_dims(2), depth_radius=size // 2, bias=1.0, alpha=alpha / size, beta=0.75
    ).squeeze(2),
    "lstm": lambda input, h0, c0, *weights: _recurrent(nn.LSTM, input, (h0, c0), weights),
    "lstm_cell": lambda input, h0, c0, *weights: _cell(nn.LSTMCell, input, (h0, c0), weights),
    "lu_solve": lambda lu, pivots, other: ops.lu_solve(other, lu, pivots.astype(_INT32)),
    "max_pool1d": partial(_pooled, nn.MaxPool1d),
    "max_pool2d_with_indices": lambda input, size: ops.MaxPoolWithArgmaxV2(size, size)(input),
    "max_pool3d_with_indices": lambda input, size: ops.MaxPool3DWithArgmax(size, size, 0)(input),
    "mean": lambda input, *, dim=None, keepdim=False: ops.mean(input, dim, keepdim),
    "multi_head_attention": _multi_head_attention,
    "multilabel_margin_loss": lambda input, target, reduction: ops.multilabel_margin_loss(
        input, target.astype(_INT32), reduction=reduction
    ),
    "normal": lambda mean, std: ops.normal(tuple(mean.shape), mean, std),
    "normalize": lambda input: ops.L2Normalize(1, 1e-12)(input),
    "nuclear_norm": lambda input: ops.NuclearNorm()(input),
    "one_hot": lambda input: ops.one_hot(input, 5),
    "poisson": lambda rate: ops.poisson((), rate),
    "poisson_nll_loss": lambda input, target, reduction: built(
        nn.PoissonNLLLoss, reduction=reduction
    )(input, target),
    "polygamma": lambda n, input: ops.polygamma(Tensor(n, _INT32), input),
    "randint": lambda high, shape: ops.randint(0, high, tuple(shape)),
    "randint_like": lambda input, high: ops.randint_like(input, 0, high, dtype=mindspore.int64),
    "real": _real,
    "reflection_pad1d": partial(_pad, "ReflectionPad{}d"),
    "reflection_pad2d": partial(_pad, "ReflectionPad{}d"),
    "reflection_pad3d": partial(_pad, "ReflectionPad{}d"),
    "replication_pad1d": partial(_pad, "ReplicationPad{}d"),
    "replication_pad2d": partial(_pad, "ReplicationPad{}d"),
    "replication_pad3d": partial(_pad, "ReplicationPad{}d"),
    "rms_norm": lambda input, shape, weight: ops.rms_norm(input, weight)[0],
    "rnn": lambda input, h0, *weights: _recurrent(nn.RNN, input, h0, weights),
    "rnn_cell": lambda input, h0, *weights: _cell(nn.RNNCell, input, h0, weights),
    "rot90": lambda input: ops.rot90(input, 1, (0, 1)),
    "rrelu": lambda input, training: built(nn.RReLU, 11 / 48, 11 / 48)(input),
    "segment_pool": _segment_pool,
    # The gradient of `mint.select` fails: "InplaceCopy, an unexpected kernel has been launched".
    "select": lambda input, dim, index: input[(slice(None),) * dim + (index,)],
    "slice": lambda input, dim, start, end: input[(slice(None),) * dim + (slice(start, end),)],
    "split": _chunked,
    "std": _std(ops.std),
    "std_mean": _std(ops.std_mean),
    "tensordot": lambda a, b, dims: ops.tensor_dot(a, b, dims),
    "tile": lambda input, dims: ops.tile(input, tuple(dims)),
    "transformer_decoder_layer": _decoder_layer,
    "transformer_encoder_layer": _encoder_layer,
    "triplet_margin_with_distance_loss": lambda a, p, n, reduction, margin: built(
        nn.TripletMarginWithDistanceLoss, margin=margin, reduction=reduction
    )(a, p, n),
    "unflatten": lambda input, dim, sizes: built(nn.Unflatten, dim, tuple(sizes))(input),
    "upsample_bicubic2d": lambda input, size: ops.ResizeBicubic(half_pixel_centers=True)(
        input, Tensor(size, _INT32)
    ),
    "upsample_bilinear2d": partial(_resize, ops.ResizeBilinearV2(half_pixel_centers=True)),
    "upsample_linear1d": lambda input, size: ops.ResizeLinear1D("half_pixel")(
        input, Tensor(size, _INT32)
    ),
    "upsample_nearest1d": lambda input, size: auto_generate.UpsampleNearest1D()(
        input, tuple(size), None
    ),
    "upsample_nearest2d": partial(_resize, auto_generate.ResizeNearestNeighborV2()),
    "upsample_nearest3d": lambda input, size: ops.UpsampleNearest3D()(input, tuple(size), None),
    "upsample_trilinear3d": lambda input, size: ops.UpsampleTrilinear3D()(input, tuple(size), None),
    "uniform": lambda input: ops.uniform(tuple(input.shape), Tensor(0.0), Tensor(1.0)),
    "var": _std(ops.var),
    "var_mean": _std(ops.var_mean),
    **RARE,
}
