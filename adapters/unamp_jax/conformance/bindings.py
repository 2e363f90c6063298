"""JAX's functions in PyTorch's signatures, where those differ; for `operations`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from unamp._function_types import Function
from unamp_jax.state import Array


def _axis(function: Function) -> Function:
    """Return a function that takes `dim` for the given function's `axis`."""
    return lambda *args, dim=None, keepdim=False, **kwargs: function(
        *args, axis=dim, **({"keepdims": True} if keepdim else {}), **kwargs
    )


def _listed(function: Function) -> Function:
    return lambda *tensors: function(list(tensors))


def _spread(function: Function) -> Function:
    return lambda input, *, dim, correction=1: function(input, axis=dim, ddof=correction)


def _reduced(found: Array, reduction: str) -> Array:
    return (
        found if reduction == "none" else jnp.sum(found) if reduction == "sum" else jnp.mean(found)
    )


def _loss(function: Function) -> Function:
    return lambda input, target, *, reduction="mean": _reduced(function(input, target), reduction)


def _ctc_loss(
    log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, *, reduction: str
) -> Array:
    steps, count = jnp.arange(log_probs.shape[0]), jnp.arange(targets.shape[1])
    logit_paddings = (steps[None] >= input_lengths[:, None]).astype(log_probs.dtype)
    label_paddings = (count[None] >= target_lengths[:, None]).astype(log_probs.dtype)
    return optax.ctc_loss(jnp.swapaxes(log_probs, 0, 1), logit_paddings, targets, label_paddings)


def _kl_div(input: Array, target: Array, *, reduction: str) -> Array:
    """Return the loss of each element: optax adds up the last axis, so each gets its own row."""
    return optax.kl_divergence(input[..., None], target[..., None])


def _attention(query: Array, key: Array, value: Array) -> Array:
    heads_later = (jnp.swapaxes(tensor, 1, 2) for tensor in (query, key, value))
    return jnp.swapaxes(jax.nn.dot_product_attention(*heads_later), 1, 2)


def _flatten(input: Array, start: int = 0) -> Array:
    return jnp.reshape(input, (*input.shape[:start], -1))


def _gather(input: Array, dim: int, index: Array) -> Array:
    return input[_columns(input, index)]


def _slice(input: Array, dim: int, start: int, end: int) -> Array:
    low, high = [0] * input.ndim, list(input.shape)
    low[dim], high[dim] = start, end
    return lax.slice(input, low, high)


def _slice_scatter(input: Array, values: Array, dim: int, start: int, end: int) -> Array:
    places = [0] * input.ndim
    places[dim] = start
    return lax.dynamic_update_slice(input, values, places)


def _columns(input: Array, index: Array) -> tuple[Any, Any]:
    rows = jnp.broadcast_to(jnp.arange(index.shape[0])[:, None], index.shape)
    return rows, index


def _scattered(function: Function) -> Function:
    """Return a function that scatters rows of numbers into columns.

    ``x.at[...]`` would cast the stored value by itself.
    """
    numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))

    def scatter(input: Array, dim: int, index: Array, source: Array) -> Array:
        return function(input, jnp.stack(_columns(input, index), -1), source, numbers)

    return scatter


def _topk(input: Array, k: int, *, dim: int) -> Any:
    values, places = lax.top_k(jnp.swapaxes(input, dim, -1), k)
    return jnp.swapaxes(values, dim, -1), jnp.swapaxes(places, dim, -1)


def _cumulated(function: Function) -> Function:
    return lambda input, *, dim: function(input, axis=dim)


def _interpolate(input: Array, *, scale_factor: float, mode: str) -> Array:
    size = [int(n * scale_factor) for n in input.shape[2:]]
    return jax.image.resize(input, (*input.shape[:2], *size), mode, antialias=False)


def _lu_solve(lu: Array, pivots: Array, other: Array) -> Array:
    return jax.scipy.linalg.lu_solve((lu, pivots.astype("int32") - 1), other)


def _tridiagonal(lower: Array, diagonal: Array, upper: Array, other: Array) -> Array:
    return lax.linalg.tridiagonal_solve(lower, diagonal, upper, other)


def _key() -> Any:
    return jax.random.key(0)


def _multinomial(input: Array, count: int) -> Array:
    return jax.random.multinomial(_key(), count, input / input.sum())


def _stft(input: Array, n_fft: int, *, return_complex: bool = True, center: bool = True) -> Array:
    return jax.scipy.signal.stft(
        input, window="boxcar", nperseg=n_fft, noverlap=n_fft - n_fft // 4,
        boundary=None, padded=False,
    )[2] * n_fft  # fmt: skip


def _istft(input: Array, n_fft: int) -> Array:
    return jax.scipy.signal.istft(
        input / n_fft, window="boxcar", nperseg=n_fft, noverlap=n_fft - n_fft // 4
    )[1]


def _window(function: Function) -> Function:
    """Return a periodic window: PyTorch's default, where NumPy's functions give symmetric ones."""
    return lambda size: function(size + 1)[:-1]


def _histc(input: Array, *, bins: int, min: float, max: float) -> Array:
    return jnp.histogram(input, bins, (min, max))[0]


def _batched(lhs: Array, rhs: Array) -> Array:
    return lax.batch_matmul(lhs, rhs)


def _grouped(input: Array, weight: Array) -> Array:
    count, rows, width = input.shape
    sizes = jnp.full((count,), rows, "int32")
    return lax.ragged_dot(input.reshape(-1, width), weight, sizes).reshape(count, rows, -1)


_REDUCTIONS: dict[str, Function] = {
    **{
        name: _axis(getattr(jnp, name))
        for name in "amax amin argmax argmin cumprod cumsum count_nonzero mean median nanmean "
        "nanmedian nansum prod sum trapezoid cross".split()
    },
    **{name: _axis(getattr(jax.nn, name)) for name in ("log_softmax", "logsumexp", "softmax")},
    "all": _axis(jnp.all),
    "any": _axis(jnp.any),
    "argsort": lambda input, *, dim, stable: jnp.argsort(input, axis=dim, stable=stable),
    "cummax": _cumulated(lax.cummax),
    "cummin": _cumulated(lax.cummin),
    "linalg_norm": _axis(jnp.linalg.norm),
    "linalg_vector_norm": _axis(jnp.linalg.vector_norm),
    "logcumsumexp": _cumulated(lax.cumlogsumexp),
    "nanquantile": lambda input, q, *, dim: jnp.nanquantile(input, q, axis=dim),
    "quantile": lambda input, q, *, dim: jnp.quantile(input, q, axis=dim),
    "sort": lambda input, *, dim: jnp.sort(input, axis=dim),
    "std": _spread(jnp.std),
    "topk": _topk,
    "unsorted_segment_sum": lambda data, ids, count: jax.ops.segment_sum(data, ids, count),
    "var": _spread(jnp.var),
}

_PRODUCTS: dict[str, Function] = {
    "bmm": _batched,
    "correlation": lambda a, b: jnp.correlate(a, b),
    "grouped_mm": _grouped,
    "matmul": jnp.matmul,
    "scaled_dot_product_attention": _attention,
    "tensordot": lambda a, b, *, dims: jnp.tensordot(a, b, axes=dims),
}

_LOSSES: dict[str, Function] = {
    "binary_cross_entropy_with_logits": _loss(optax.sigmoid_binary_cross_entropy),
    "cosine_similarity": lambda a, b: optax.cosine_similarity(a, b),
    "cross_entropy": _loss(optax.softmax_cross_entropy_with_integer_labels),
    "ctc_loss": _ctc_loss,
    "dice_loss": lambda input, target: optax.losses.dice_loss(
        input, jax.nn.one_hot(target[:, 0], input.shape[1], dtype=input.dtype)
    ),
    "focal_loss": lambda input, target, reduction: optax.sigmoid_focal_loss(
        input, target, alpha=0.25
    ),
    "hinge_loss": lambda input, target, reduction: optax.hinge_loss(input, target),
    "huber_loss": _loss(optax.huber_loss),
    "kl_div": _kl_div,
    "label_smooth": lambda input: optax.smooth_labels(input, 0.1),
    "log_cosh_loss": lambda input, target, reduction: optax.log_cosh(input, target),
    "mse_loss": _loss(optax.squared_error),
    "triplet_margin_loss": lambda *tensors, reduction, margin: optax.losses.triplet_margin_loss(
        *tensors, margin=margin
    ),
}

_SHAPES: dict[str, Function] = {
    "cat": lambda tensors, dim=0: jnp.concatenate(tensors, axis=dim),
    "block_diag": jax.scipy.linalg.block_diag,
    "broadcast_tensors": lambda *tensors: jnp.broadcast_arrays(*tensors),
    "expand": lambda input, shape: lax.broadcast(input[0], (shape[0],)),
    "fill_diagonal": lambda input, value: jnp.fill_diagonal(input, value, inplace=False),
    "flatten": _flatten,
    "flip": lambda input, dims: jnp.flip(input, tuple(dims)),
    "gather": _gather,
    "meshgrid": lambda *tensors: jnp.meshgrid(*tensors, indexing="ij"),
    "movedim": jnp.moveaxis,
    "numel": lambda input: jnp.asarray(jnp.size(input)),
    "pad": lambda input, padding: jnp.pad(input, ((0, 0), tuple(padding))),
    "permute": lambda input, dims: jnp.transpose(input, tuple(dims)),
    "put": lambda input, index, values: jnp.put(input, index, values, inplace=False),
    "repeat": lambda input, sizes: jnp.tile(input, tuple(sizes)),
    "repeat_interleave": lambda input, count: jnp.repeat(input, count),
    "scatter": _scattered(lax.scatter),
    "scatter_add": _scattered(lax.scatter_add),
    "select": lambda input, dim, index: lax.index_in_dim(
        input, index if index >= 0 else index + input.shape[dim], dim, False
    ),
    "shape": lambda input: jnp.asarray(jnp.shape(input)),
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "split": lambda input, size, dim=0: jnp.split(input, input.shape[dim] // size, dim),
    "squeeze": lambda input, dim=None: jnp.squeeze(input, dim),
    "take": jnp.take,
    "take_along_dim": lambda input, index, dim: jnp.take_along_axis(input, index, axis=dim),
    "tile": lambda input, sizes: jnp.tile(input, tuple(sizes)),
    "transpose": jnp.swapaxes,
    "unsqueeze": lambda input, dim: jnp.expand_dims(input, dim),
}

_LINALG: dict[str, Function] = {
    "cholesky_solve": lambda other, factor: jax.scipy.linalg.cho_solve((factor, True), other),
    "linalg_lu": jax.vmap(lambda input: jax.scipy.linalg.lu(input)),
    "linalg_matrix_norm": lambda input: jnp.linalg.matrix_norm(input),
    "linalg_matrix_exp": jax.scipy.linalg.expm,
    "linalg_matrix_sqrt": jax.vmap(lambda input: jax.scipy.linalg.sqrtm(input).real),
    "linalg_solve_triangular": lambda input, other, *, upper: jax.scipy.linalg.solve_triangular(
        input, other, lower=not upper
    ),
    "linalg_tensorinv": lambda input, *, ind: jnp.linalg.tensorinv(input, ind),
    "linalg_tridiagonal_solve": _tridiagonal,
    "lu_solve": _lu_solve,
    "dct": lambda input: jax.scipy.fft.dct(input, norm="ortho"),
    "idct": lambda input: jax.scipy.fft.idct(input, norm="ortho"),
    "istft": _istft,
    "stft": _stft,
}

_RANDOM: dict[str, Function] = {
    "bernoulli": lambda input: jax.random.bernoulli(_key(), input),
    "binomial": lambda count, p: jax.random.binomial(_key(), count, p),
    "dirichlet": lambda input: jax.random.dirichlet(_key(), input),
    "exponential": lambda input: jax.random.exponential(_key(), input.shape),
    "gamma": lambda input: jax.random.gamma(_key(), input),
    "laplace": lambda mean, scale: jax.random.laplace(_key(), mean.shape),
    "multinomial": _multinomial,
    "normal": lambda mean, std: jax.random.normal(_key(), mean.shape),
    "poisson": lambda input: jax.random.poisson(_key(), input),
    "randint": lambda high, shape: jax.random.randint(_key(), shape, 0, high),
    "shuffle": lambda input: jax.random.permutation(_key(), input),
    "truncated_normal": lambda size: jax.random.truncated_normal(_key(), -2.0, 2.0, tuple(size)),
    "uniform": lambda input: jax.random.uniform(_key(), input.shape),
}

_OTHERS: dict[str, Function] = {
    "add": lambda a, b: jnp.add(a, b),
    "allclose": lambda a, b, *, rtol, atol: jnp.allclose(a, b, rtol=rtol, atol=atol),
    "bartlett_window": _window(jnp.bartlett),
    "bitcast": lambda input, dtype: lax.bitcast_convert_type(
        input, "int32" if input.dtype.itemsize == 4 else dtype
    ),
    "bitwise_shift": jnp.left_shift,
    "blackman_window": _window(jnp.blackman),
    "bucketize": lambda input, boundaries: jnp.digitize(input, boundaries, right=True),
    "cast": lambda input, dtype: jnp.asarray(input).astype(dtype),
    "clamp": lambda input, min=None, max=None: jnp.clip(input, min, max),
    "detach": lax.stop_gradient,
    "gelu": lambda input, *, approximate="none": jax.nn.gelu(
        input, approximate=approximate == "tanh"
    ),
    "hamming_window": _window(jnp.hamming),
    "hann_window": _window(jnp.hanning),
    "histc": _histc,
    "interpolate": _interpolate,
    "isclose": lambda a, b, *, rtol, atol: jnp.isclose(a, b, rtol=rtol, atol=atol),
    "kaiser_window": _window(lambda size: jnp.kaiser(size, 12.0)),
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "mul": lambda a, b: operator.mul(a, b) if isinstance(b, float) else jnp.multiply(a, b),
    "mvlgamma": lambda input, p: jax.scipy.special.multigammaln(input, p),
    "one_hot": lambda input: jax.nn.one_hot(input, 5),
    "polygamma": lambda n, input: jax.scipy.special.polygamma(n, input),
    "scale_and_translate": lambda input, size: jax.image.scale_and_translate(
        input, (*input.shape[:2], *size), (2, 3),
        jnp.asarray([1.5, 1.5], input.dtype), jnp.asarray([0.0, 0.0], input.dtype), "lanczos3",
    ),
    "tril_indices": lambda rows, columns: jnp.stack(jnp.tril_indices(rows, 0, columns)),
    "triu_indices": lambda rows, columns: jnp.stack(jnp.triu_indices(rows, 0, columns)),
    "vander": lambda input, count: jnp.vander(input, count),
}  # fmt: skip

#: The functions by canonical name.
BINDINGS: Mapping[str, Function] = {
    **_REDUCTIONS, **_PRODUCTS, **_LOSSES, **_SHAPES, **_LINALG, **_RANDOM, **_OTHERS,
}  # fmt: skip
