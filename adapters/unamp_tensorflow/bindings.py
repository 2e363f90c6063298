"""TensorFlow's functions and Keras's layers in PyTorch's signatures, where they have others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from unamp_tensorflow.layers import LAYERS, built, channels, first, keras, last
from unamp_tensorflow.rare import RARE

__all__ = ["BINDINGS"]

Tensor = tf.Tensor
Function = Callable[..., Any]


def _axis(function: Function, name: str = "axis") -> Function:
    """A function that calls `axis` what PyTorch calls `dim`."""
    return lambda *args, dim, **kwargs: function(*args, **{name: dim}, **kwargs)


def _op(name: str) -> Function:
    """A function of `keras.ops`, found when it is called: Keras is imported late."""
    return lambda *args, **kwargs: keras(f"ops.{name}")(*args, **kwargs)


# --- single functions --------------------------------------------------------------------------------------------------------


def _pool(function: Function) -> Function:
    return channels(lambda input, size: function(input, size, size, "VALID"))


def _max_pool_with_indices(input: Tensor, size: int) -> Any:
    return first(tf.nn.max_pool_with_argmax(last(input), size, size, "VALID")[0])


def _resize(method: str) -> Function:
    return channels(lambda input, size: tf.image.resize(input, size, method))


def _raw_resize(name: str, **keywords: Any) -> Function:
    return channels(lambda input, size: getattr(tf.raw_ops, name)(images=input, size=size, **keywords))


def _interpolate(input: Tensor, *, scale_factor: float, mode: str) -> Tensor:
    size = [int(n * scale_factor) for n in input.shape[2:]]
    return _resize(mode)(input, size)


def _cross_entropy(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=input)
    return found if reduction == "none" else tf.reduce_mean(found)


def _with_logits(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    found = tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=input)
    return found if reduction == "none" else tf.reduce_mean(found)


def _loss(name: str) -> Function:
    """A loss of Keras, which averages over the last axis: each element is a row of its own here."""

    def loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        found = keras(f"losses.{name}")(target[..., None], input[..., None])
        return found if reduction == "none" else tf.reduce_mean(found)

    return loss


def _ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *, reduction: str) -> Tensor:
    return tf.nn.ctc_loss(
        tf.cast(targets, tf.int32), log_probs, tf.cast(target_lengths, tf.int32), tf.cast(input_lengths, tf.int32),
        logits_time_major=True, blank_index=0,
    )  # fmt: skip


def _reduced(function: Function) -> Function:
    return lambda input, *, dim: function(input, axis=dim)


def _stacked(name: str) -> Function:
    return lambda tensors: keras(f"ops.{name}")(tensors)


def _fft(name: str, *, to_complex: bool = True) -> Function:
    function = getattr(tf.signal, name)
    return lambda input: function(tf.complex(input, tf.zeros_like(input)) if to_complex else input)


def _stft(input: Tensor, n_fft: int, *, return_complex: bool = True, center: bool = True) -> Tensor:
    return tf.linalg.matrix_transpose(tf.signal.stft(input, n_fft, n_fft // 4, n_fft, window_fn=None))


def _istft(input: Tensor, n_fft: int) -> Tensor:
    frames, step = tf.transpose(input), n_fft // 4
    joined = tf.signal.inverse_stft(frames, n_fft, step, n_fft, window_fn=None)
    overlaps = tf.signal.overlap_and_add(tf.ones([frames.shape[0], n_fft], joined.dtype), step)
    return (joined / overlaps)[n_fft // 2 : -(n_fft // 2)]


def _segment_pool(data: Tensor, lengths: Tensor) -> Tensor:
    return tf.math.segment_sum(data, tf.repeat(tf.range(lengths.shape[0]), lengths))


def _lu(input: Tensor) -> Any:
    lu, rows = tf.linalg.lu(input)
    lower = tf.linalg.set_diag(tf.linalg.band_part(lu, -1, 0), tf.ones_like(lu[..., 0]))
    return tf.linalg.matrix_transpose(tf.one_hot(rows, lu.shape[-1], dtype=lu.dtype)), lower, tf.linalg.band_part(lu, 0, -1)


def _svd(input: Tensor) -> Any:
    s, u, v = tf.linalg.svd(input)
    return u, s, v


def _permutation(pivots: Tensor) -> Tensor:
    return tf.cast(pivots - 1, tf.int32)


def _window(function: Function) -> Function:
    """A periodic window: PyTorch's default, where TensorFlow's functions give symmetric ones."""
    return lambda size: function(size + 1)[:-1]


def _spread(function: Function) -> Function:
    """A variance or a deviation: TensorFlow divides by the number of elements, and by nothing else."""

    def spread(input: Tensor, *, dim: int, correction: int = 1) -> Any:
        if correction:
            raise NotImplementedError("TensorFlow's has no correction")
        return function(input, dim)

    return spread


def _shuffled(input: Tensor, factor: int) -> Tensor:
    """A pixel shuffle: a block's pixels stand before its channels in TensorFlow, and after them in PyTorch."""
    count, channels, *size = input.shape
    blocks = tf.reshape(input, [count, channels // factor**2, factor**2, *size])
    ordered = tf.reshape(tf.transpose(blocks, [0, 3, 4, 2, 1]), [count, *size, channels])
    return first(tf.nn.depth_to_space(ordered, factor))


def _unshuffled(input: Tensor, factor: int) -> Tensor:
    blocks = tf.nn.space_to_depth(last(input), factor)
    count, *size, channels = blocks.shape
    parted = tf.reshape(blocks, [count, *size, factor**2, channels // factor**2])
    return tf.reshape(tf.transpose(parted, [0, 4, 3, 1, 2]), [count, channels, *size])


def _rolled(input: Tensor, shift: int) -> Tensor:
    return tf.reshape(tf.roll(tf.reshape(input, [-1]), shift, 0), input.shape)


def _embedding_bag(index: Tensor, table: Tensor, *, mode: str) -> Tensor:
    count, size = index.shape
    places = [[row, column] for row in range(count) for column in range(size)]
    ids = tf.SparseTensor(places, tf.reshape(index, [-1]), [count, size])
    return tf.nn.embedding_lookup_sparse(table, ids, None, combiner=mode)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads_later = [tf.transpose(tensor, [0, 2, 1, 3]) for tensor in (query, key, value)]
    return tf.transpose(keras("ops.dot_product_attention")(*heads_later), [0, 2, 1, 3])


def _swapped(input: Tensor, first: int, second: int) -> Tensor:
    order = list(range(input.ndim))
    order[first], order[second] = order[second], order[first]
    return tf.transpose(input, order)


def _chunked(input: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return tf.split(input, input.shape[dim] // size, dim)


def _slice(input: Tensor, dim: int, start: int, end: int) -> Tensor:
    begin, size = [0] * input.ndim, [-1] * input.ndim
    begin[dim], size[dim] = start, end - start
    return tf.slice(input, begin, size)


def _without_batch(name: str, input: Tensor, *args: Any) -> Tensor:
    """A layer that leaves the first axis alone, on a tensor that has none to leave."""
    return built(name, input, *args)(input[None])[0]


def _flatten(input: Tensor, start: int = 0) -> Tensor:
    return built("Flatten", input)(input) if start else _without_batch("Flatten", input)


def _permuted(input: Tensor, dims: Sequence[int]) -> Tensor:
    return _without_batch("Permute", input, tuple(n + 1 for n in dims))


def _zero_pad(input: Tensor, padding: Sequence[int]) -> Tensor:
    return built("ZeroPadding1D", input, tuple(padding))(input[..., None])[..., 0]


def _diag_embed(input: Tensor) -> Tensor:
    return tf.raw_ops.MatrixDiagV3(diagonal=input, k=0, num_rows=-1, num_cols=-1, padding_value=0.0)


def _select(input: Tensor, dim: int, index: int) -> Tensor:
    return tf.gather(input, index if index >= 0 else input.shape[dim] + index, axis=dim)


def _fake_quantize(input: Tensor, scale: float, zero: int, low: int, high: int) -> Tensor:
    return tf.quantization.fake_quant_with_min_max_vars(input, scale * low, scale * high, 16)


def _fake_quantize_channels(input: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int) -> Tensor:
    channels_last = _swapped(input, axis, input.ndim - 1)
    found = tf.quantization.fake_quant_with_min_max_vars_per_channel(channels_last, scale * low, scale * high, 16)
    return _swapped(found, axis, input.ndim - 1)


def _pad(mode: str) -> Function:
    def pad(input: Tensor, padding: Sequence[int]) -> Tensor:
        pairs = [list(padding[n : n + 2]) for n in range(0, len(padding), 2)]
        return tf.pad(input, [[0, 0]] * (input.ndim - len(pairs)) + pairs[::-1], mode)

    return pad


_SHAPES: dict[str, Function] = {
    "adjoint": tf.linalg.adjoint,
    "broadcast_to": tf.broadcast_to,
    "conj": tf.math.conj,
    "diagonal": tf.linalg.diag_part,
    "fft_fftshift": tf.signal.fftshift,
    "fft_ifftshift": tf.signal.ifftshift,
    "flatten": _flatten,
    "flip": lambda input, dims: tf.reverse(input, dims),
    "imag": tf.math.imag,
    "meshgrid": lambda a, b: tf.meshgrid(a, b, indexing="ij"),
    "movedim": lambda input, source, target: _op("moveaxis")(input, source, target),
    "permute": _permuted,
    "pixel_shuffle": _shuffled,
    "pixel_unshuffle": _unshuffled,
    "real": tf.math.real,
    "roll": _rolled,
    "select": _select,
    "slice": _slice,
    "split": _chunked,
    "tensor_split": _op("array_split"),
    "tensor_unfold": lambda input, dim, size, step: tf.signal.frame(input, size, step, axis=dim),
    "transpose": _swapped,
    "unbind": tf.unstack,
    "view_as_complex": _op("view_as_complex"),
    "view_as_real": _op("view_as_real"),
    "view": tf.reshape,
}

_INDEXING: dict[str, Function] = {
    "argmax": _axis(tf.argmax),
    "argmin": _axis(tf.argmin),
    "argsort": _axis(tf.argsort),
    "cat": lambda tensors, dim=0: tf.concat(tensors, dim),
    "constant_pad_nd": _zero_pad,
    "diag": _op("diag"),
    "diag_embed": _diag_embed,
    "dstack": _stacked("dstack"),
    "fold": _op("fold"),
    "gather": lambda input, dim, index: tf.gather(input, index, axis=dim, batch_dims=dim),
    "hstack": _stacked("hstack"),
    "kthvalue": lambda input, k, *, dim: tf.raw_ops.NthElement(input=input, n=k - 1),
    "nonzero": lambda input: tf.raw_ops.Where(condition=input),
    "pad": _pad("CONSTANT"),
    "reflection_pad2d": _pad("REFLECT"),
    "slice_scatter": lambda input, source, dim, start, end: _op("slice_update")(input, [start, 0], source),
    "sort": _axis(tf.sort),
    "stack": tf.stack,
    "take": lambda input, index: _op("take")(input, index),
    "take_along_dim": lambda input, index, dim: _op("take_along_axis")(input, index, dim),
    "topk": lambda input, k, *, dim: tf.math.top_k(input, k),
    "unfold": _op("unfold"),
    "unique": tf.unique,
    "vstack": _stacked("vstack"),
}

_REDUCTIONS: dict[str, Function] = {
    "all": lambda input, *, dim: tf.reduce_all(tf.not_equal(input, 0.0), dim),
    "any": lambda input, *, dim: tf.reduce_any(tf.not_equal(input, 0.0), dim),
    "amax": _reduced(tf.reduce_max),
    "amin": _reduced(tf.reduce_min),
    "bincount": lambda input, weights: tf.math.bincount(tf.cast(input, tf.int32), weights),
    "cdist": _op("cdist"),
    "count_nonzero": _reduced(tf.math.count_nonzero),
    "cumprod": _reduced(tf.math.cumprod),
    "cumsum": _reduced(tf.cumsum),
    "histc": lambda input, *, bins, min, max: tf.histogram_fixed_width(input, tf.cast([min, max], input.dtype), bins),
    "linalg_norm": _reduced(tf.linalg.norm),
    "linalg_vector_norm": _reduced(tf.math.reduce_euclidean_norm),
    "logcumsumexp": _reduced(tf.math.cumulative_logsumexp),
    "logsumexp": _reduced(tf.reduce_logsumexp),
    "mean": lambda input, *, dim=None: tf.reduce_mean(input, dim),
    "median": _reduced(_op("median")),
    "nanmean": _reduced(_op("nanmean")),
    "nanmedian": _reduced(_op("nanmedian")),
    "nanquantile": lambda input, q, *, dim: _op("nanquantile")(input, q, axis=dim),
    "nansum": _reduced(_op("nansum")),
    "norm": _reduced(tf.norm),
    "prod": _reduced(tf.reduce_prod),
    "quantile": lambda input, q, *, dim: _op("quantile")(input, q, axis=dim),
    "segment_pool": _segment_pool,
    "std": _spread(tf.math.reduce_std),
    "sum": lambda input, *, dim=None: tf.reduce_sum(input, dim),
    "trapezoid": _reduced(_op("trapezoid")),
    "var": _spread(tf.math.reduce_variance),
    "var_mean": _spread(lambda input, dim: tf.nn.moments(input, [dim])[::-1]),
}

_PRODUCTS: dict[str, Function] = {
    "bmm": lambda a, b: tf.raw_ops.BatchMatMulV2(x=a, y=b),
    # TensorFlow's has no bias.
    "convolution": lambda input, weight, bias: first(
        tf.nn.convolution(last(input), tf.transpose(weight, [*range(2, weight.ndim), 1, 0]))
    ),
    "embedding": lambda index, table: tf.nn.embedding_lookup(table, index),
    "embedding_bag": _embedding_bag,
    "mv": tf.linalg.matvec,
    "scaled_dot_product_attention": _attention,
    "tensordot": lambda a, b, *, dims: tf.tensordot(a, b, dims),
}

_LINALG: dict[str, Function] = {
    "cholesky_solve": lambda other, factor: tf.linalg.cholesky_solve(factor, other),
    "cross": lambda a, b, *, dim: tf.linalg.cross(a, b),
    "linalg_lu": _lu,
    "linalg_matrix_exp": tf.linalg.expm,
    "linalg_solve_triangular": lambda input, other, *, upper: tf.linalg.triangular_solve(input, other, lower=not upper),
    "linalg_svd": _svd,
    "lu_solve": lambda lu, pivots, other: tf.linalg.lu_solve(lu, _permutation(pivots), other),
    "lu_unpack": lambda lu, pivots: (None, tf.linalg.lu_reconstruct(lu, _permutation(pivots))),
    "fft_fft": _fft("fft"),
    "fft_fft2": _fft("fft2d"),
    "fft_fftn": _fft("fftnd"),
    "fft_ifft": _fft("ifft"),
    "fft_ifft2": _fft("ifft2d"),
    "fft_ifftn": _fft("ifftnd"),
    "fft_irfft": _fft("irfft"),
    "fft_irfft2": _fft("irfft2d"),
    "fft_irfftn": _fft("irfftnd"),
    "fft_rfft": _fft("rfft", to_complex=False),
    "fft_rfft2": _fft("rfft2d", to_complex=False),
    "fft_rfftn": _fft("rfftnd", to_complex=False),
    "istft": _istft,
    "stft": _stft,
}

_LOSSES: dict[str, Function] = {
    "binary_cross_entropy": _loss("binary_crossentropy"),
    "binary_cross_entropy_with_logits": _with_logits,
    "cosine_similarity": lambda a, b: -keras("losses.cosine_similarity")(a, b),  # a loss: the less, the more similar
    "cross_entropy": _cross_entropy,
    "ctc_loss": _ctc_loss,
    "huber_loss": _loss("huber"),
    "kl_div": _loss("kld"),
    "l1_loss": _loss("mae"),
    "mse_loss": _loss("mse"),
    "poisson_nll_loss": lambda input, target, *, reduction: tf.nn.log_poisson_loss(target, input),
}

_OTHERS: dict[str, Function] = {
    "avg_pool1d": _pool(tf.nn.avg_pool1d),
    "avg_pool2d": _pool(tf.nn.avg_pool2d),
    "avg_pool3d": _pool(tf.nn.avg_pool3d),
    "max_pool1d": _pool(tf.nn.max_pool1d),
    "max_pool2d": _pool(tf.nn.max_pool2d),
    "max_pool2d_with_indices": _max_pool_with_indices,
    "max_pool3d": _pool(tf.nn.max_pool3d),
    "fractional_max_pool2d": lambda input, samples, *, kernel, size: first(
        tf.nn.fractional_max_pool(last(input), 2.0, seed=1)[0]
    ),
    "interpolate": _interpolate,
    "upsample_bicubic2d": _raw_resize("ResizeBicubic", half_pixel_centers=True),
    "upsample_bilinear2d": _raw_resize("ResizeBilinear", half_pixel_centers=True),
    "upsample_nearest2d": _raw_resize("ResizeNearestNeighbor"),
    "allclose": lambda a, b, *, rtol, atol: _op("allclose")(a, b, rtol=rtol, atol=atol),
    "isclose": lambda a, b, *, rtol, atol: _op("isclose")(a, b, rtol=rtol, atol=atol),
    "bartlett_window": _window(_op("bartlett")),
    "blackman_window": _window(_op("blackman")),
    "kaiser_window": _window(tf.signal.kaiser_window),
    "leaky_relu": lambda input, negative_slope=0.01: tf.nn.leaky_relu(input, negative_slope),
    "bitwise_shift": tf.bitwise.left_shift,
    "bucketize": lambda input, boundaries: tf.raw_ops.Bucketize(input=input, boundaries=boundaries.numpy().tolist()),
    "cast": lambda input, dtype: tf.cast(input, dtype),
    "clamp": tf.clip_by_value,
    "dropout": lambda input, p, training: tf.nn.dropout(input, p),
    "fake_quantize_per_channel_affine": _fake_quantize_channels,
    "fake_quantize_per_tensor_affine": _fake_quantize,
    "full": tf.fill,
    "gamma": lambda input: tf.random.gamma([], input),
    "local_response_norm": lambda input, size, *, alpha: first(
        tf.nn.local_response_normalization(last(input)[:, None], size // 2, 1.0, alpha / size, 0.75)[:, 0]
    ),
    "log_softmax": _axis(tf.nn.log_softmax),
    "logical_and": lambda a, b: tf.logical_and(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "logical_not": lambda a: tf.logical_not(tf.not_equal(a, 0.0)),
    "logical_or": lambda a, b: tf.logical_or(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "logical_xor": lambda a, b: tf.math.logical_xor(tf.not_equal(a, 0.0), tf.not_equal(b, 0.0)),
    "multinomial": lambda input, count: tf.random.categorical(tf.math.log(input)[None], count)[0],
    "normal": lambda mean, std: tf.random.normal(mean.shape, mean, std),
    "normalize": lambda input: tf.math.l2_normalize(input, 1),
    "one_hot": lambda input: tf.one_hot(input, 5),
    "poisson": lambda input: _random("RandomPoissonV2", input),
    "polygamma": lambda n, input: tf.math.polygamma(tf.cast(n, input.dtype), input),
    "randint": lambda high, shape: tf.raw_ops.RandomUniformInt(shape=shape, minval=0, maxval=high),
    "softmax": _axis(tf.nn.softmax),
    "square": tf.square,
    "threshold": _op("threshold"),
    "uniform": lambda input: tf.random.uniform(input.shape),
    "vander": _op("vander"),
}


def _random(name: str, rate: Tensor) -> Tensor:
    return getattr(tf.raw_ops, name)(shape=tf.zeros([0], tf.int32), rate=rate)


#: By canonical name.
BINDINGS: Mapping[str, Function] = {
    **_SHAPES, **_INDEXING, **_REDUCTIONS, **LAYERS, **_PRODUCTS, **_LINALG, **_LOSSES, **_OTHERS, **RARE,
}  # fmt: skip
