"""Functions of TensorFlow and layers of Keras in PyTorch's signatures, where theirs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp_tensorflow.conformance.layers import LAYERS
from unamp_tensorflow.conformance.rare import RARE
from unamp_tensorflow.conformance.shapes import INDEXING, SHAPES, swapped
from unamp_tensorflow.conformance.signatures import (
    axis,
    channels,
    first,
    keras,
    last,
    loss,
    ops,
    pool,
    reduced,
)
from unamp_tensorflow.conformance.transforms import TRANSFORMS
from unamp_tensorflow.state import Tensor


def _max_pool_with_indices(input: Tensor, size: int) -> Any:
    return first(tf.nn.max_pool_with_argmax(last(input), size, size, "VALID")[0])


def _resize(method: str) -> Function:
    return channels(lambda input, size: tf.image.resize(input, size, method))


def _raw_resize(name: str, **keywords: Any) -> Function:
    return channels(
        lambda input, size: getattr(tf.raw_ops, name)(images=input, size=size, **keywords)
    )


def _interpolate(input: Tensor, *, scale_factor: float, mode: str) -> Tensor:
    size = [int(n * scale_factor) for n in input.shape[2:]]
    return _resize(mode)(input, size)


def _cross_entropy(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    return reduced(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=input), reduction
    )


def _with_logits(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    return reduced(tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=input), reduction)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    *,
    reduction: str,
) -> Tensor:
    return tf.nn.ctc_loss(
        tf.cast(targets, tf.int32),
        log_probs,
        tf.cast(target_lengths, tf.int32),
        tf.cast(input_lengths, tf.int32),
        logits_time_major=True,
        blank_index=0,
    )


def _segment_pool(data: Tensor, lengths: Tensor) -> Tensor:
    return tf.math.segment_sum(data, tf.repeat(tf.range(lengths.shape[0]), lengths))


def _window(function: Function) -> Function:
    """Return a function of periodic windows, as PyTorch's default; TensorFlow's are symmetric."""
    return lambda size: function(size + 1)[:-1]


def _spread(function: Function) -> Function:
    """Return a function of a variance or deviation, without a correction."""

    def spread(input: Tensor, *, dim: int, correction: int = 1) -> Any:
        if correction:
            raise NotImplementedError("TensorFlow's has no correction")
        return function(input, dim)

    return spread


def _embedding_bag(index: Tensor, table: Tensor, *, mode: str) -> Tensor:
    count, size = index.shape
    places = [[row, column] for row in range(count) for column in range(size)]
    ids = tf.SparseTensor(places, tf.reshape(index, [-1]), [count, size])
    return tf.nn.embedding_lookup_sparse(table, ids, None, combiner=mode)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads_later = [tf.transpose(tensor, [0, 2, 1, 3]) for tensor in (query, key, value)]
    return tf.transpose(keras("ops.dot_product_attention")(*heads_later), [0, 2, 1, 3])


def _fake_quantize(input: Tensor, scale: float, zero: int, low: int, high: int) -> Tensor:
    return tf.quantization.fake_quant_with_min_max_vars(input, scale * low, scale * high, 16)


def _fake_quantize_channels(
    input: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> Tensor:
    channels_last = swapped(input, axis, input.ndim - 1)
    found = tf.quantization.fake_quant_with_min_max_vars_per_channel(
        channels_last, scale * low, scale * high, 16
    )
    return swapped(found, axis, input.ndim - 1)


_REDUCTIONS: dict[str, Function] = {
    "all": lambda input, *, dim: tf.reduce_all(tf.not_equal(input, 0.0), dim),
    "any": lambda input, *, dim: tf.reduce_any(tf.not_equal(input, 0.0), dim),
    "amax": axis(tf.reduce_max),
    "amin": axis(tf.reduce_min),
    "bincount": lambda input, weights: tf.math.bincount(tf.cast(input, tf.int32), weights),
    "cdist": ops("cdist"),
    "count_nonzero": axis(tf.math.count_nonzero),
    "cumprod": axis(tf.math.cumprod),
    "cumsum": axis(tf.cumsum),
    "histc": lambda input, *, bins, min, max: tf.histogram_fixed_width(
        input, tf.cast([min, max], input.dtype), bins
    ),
    "linalg_norm": axis(tf.linalg.norm),
    "linalg_vector_norm": axis(tf.math.reduce_euclidean_norm),
    "logcumsumexp": axis(tf.math.cumulative_logsumexp),
    "logsumexp": axis(tf.reduce_logsumexp),
    "mean": lambda input, *, dim=None, keepdim=False: tf.reduce_mean(input, dim, keepdim),
    "median": axis(ops("median")),
    "nanmean": axis(ops("nanmean")),
    "nanmedian": axis(ops("nanmedian")),
    "nanquantile": axis(ops("nanquantile")),
    "nansum": axis(ops("nansum")),
    "norm": axis(tf.norm),
    "prod": axis(tf.reduce_prod),
    "quantile": axis(ops("quantile")),
    "segment_pool": _segment_pool,
    "std": _spread(tf.math.reduce_std),
    "sum": lambda input, *, dim=None, keepdim=False: tf.reduce_sum(input, dim, keepdim),
    "trapezoid": axis(ops("trapezoid")),
    "var": _spread(tf.math.reduce_variance),
    "var_mean": _spread(lambda input, dim: tf.nn.moments(input, [dim])[::-1]),
}

_PRODUCTS: dict[str, Function] = {
    "bmm": lambda a, b: tf.raw_ops.BatchMatMulV2(x=a, y=b),
    # TensorFlow's convolution has no bias.
    "convolution": lambda input, weight, bias: first(
        tf.nn.convolution(last(input), tf.transpose(weight, [*range(2, weight.ndim), 1, 0]))
    ),
    "embedding": lambda index, table: tf.nn.embedding_lookup(table, index),
    "embedding_bag": _embedding_bag,
    "mv": tf.linalg.matvec,
    "scaled_dot_product_attention": _attention,
    "tensordot": lambda a, b, *, dims: tf.tensordot(a, b, dims),
}

_LOSSES: dict[str, Function] = {
    "binary_cross_entropy": loss("binary_crossentropy"),
    "binary_cross_entropy_with_logits": _with_logits,
    # Keras's is a loss, smaller for more similar vectors.
    "cosine_similarity": lambda a, b: -keras("losses.cosine_similarity")(a, b),
    "cross_entropy": _cross_entropy,
    "ctc_loss": _ctc_loss,
    "huber_loss": loss("huber"),
    "kl_div": loss("kld"),
    "l1_loss": loss("mae"),
    "mse_loss": loss("mse"),
    "poisson_nll_loss": lambda input, target, *, reduction: tf.nn.log_poisson_loss(target, input),
}


def _clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if min is not None and max is not None:
        return tf.clip_by_value(input, min, max)
    return (
        tf.maximum(input, tf.cast(min, input.dtype))
        if max is None
        else tf.minimum(input, tf.cast(max, input.dtype))
    )


_OTHERS: dict[str, Function] = {
    "avg_pool1d": pool(tf.nn.avg_pool1d),
    "avg_pool2d": pool(tf.nn.avg_pool2d),
    "avg_pool3d": pool(tf.nn.avg_pool3d),
    "max_pool1d": pool(tf.nn.max_pool1d, lowest=True),
    "max_pool2d": pool(tf.nn.max_pool2d, lowest=True),
    "max_pool2d_with_indices": _max_pool_with_indices,
    "max_pool3d": pool(tf.nn.max_pool3d, lowest=True),
    "fractional_max_pool2d": lambda input, samples, *, kernel, size: first(
        tf.nn.fractional_max_pool(last(input), 2.0, seed=1)[0]
    ),
    "interpolate": _interpolate,
    "upsample_bicubic2d": _raw_resize("ResizeBicubic", half_pixel_centers=True),
    "upsample_bilinear2d": _raw_resize("ResizeBilinear", half_pixel_centers=True),
    "upsample_nearest2d": _raw_resize("ResizeNearestNeighbor"),
    "allclose": ops("allclose"),
    "isclose": ops("isclose"),
    "bartlett_window": _window(ops("bartlett")),
    "blackman_window": _window(ops("blackman")),
    "kaiser_window": _window(tf.signal.kaiser_window),
    "leaky_relu": lambda input, negative_slope=0.01: tf.nn.leaky_relu(input, negative_slope),
    "bitwise_shift": tf.bitwise.left_shift,
    "bucketize": lambda input, boundaries: tf.raw_ops.Bucketize(
        input=input, boundaries=boundaries.numpy().tolist()
    ),
    "cast": lambda input, dtype: tf.cast(input, dtype),
    "clamp": _clamp,
    "dropout": lambda input, p, training: tf.nn.dropout(input, p),
    "fake_quantize_per_channel_affine": _fake_quantize_channels,
    "fake_quantize_per_tensor_affine": _fake_quantize,
    "full": tf.fill,
    "gamma": lambda input: tf.random.gamma([], input, None, input.dtype),
    "local_response_norm": lambda input, size, *, alpha: first(
        tf.nn.local_response_normalization(
            last(input)[:, None], size // 2, 1.0, alpha / size, 0.75
        )[:, 0]
    ),
    "log_softmax": axis(tf.nn.log_softmax),
    "logical_and": lambda a, b: tf.logical_and(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "logical_not": lambda a: tf.logical_not(tf.not_equal(a, 0.0)),
    "logical_or": lambda a, b: tf.logical_or(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "logical_xor": lambda a, b: tf.math.logical_xor(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "multinomial": lambda input, count: tf.random.categorical(tf.math.log(input)[None], count)[0],
    "normal": lambda mean, std: tf.random.normal(mean.shape, mean, std, mean.dtype),
    "normalize": lambda input: tf.math.l2_normalize(input, 1),
    "one_hot": lambda input: tf.one_hot(input, 5),
    "poisson": lambda input: tf.raw_ops.RandomPoissonV2(shape=tf.zeros([0], tf.int32), rate=input),
    "polygamma": lambda n, input: tf.math.polygamma(tf.cast(n, input.dtype), input),
    "randint": lambda high, shape: tf.raw_ops.RandomUniformInt(shape=shape, minval=0, maxval=high),
    "softmax": axis(tf.nn.softmax),
    "square": tf.square,
    "threshold": ops("threshold"),
    "uniform": lambda input: tf.random.uniform(input.shape),
    "vander": ops("vander"),
}


#: By canonical name.
BINDINGS: Mapping[str, Function] = {
    **SHAPES, **INDEXING, **_REDUCTIONS, **LAYERS, **_PRODUCTS,
    **TRANSFORMS, **_LOSSES, **_OTHERS, **RARE,
}  # fmt: skip
