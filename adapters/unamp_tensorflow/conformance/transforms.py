"""TensorFlow's linear algebra and Fourier transforms, in PyTorch's signatures; for `bindings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp_tensorflow.state import Tensor


def _fft(name: str, *, to_complex: bool = True) -> Function:
    function = getattr(tf.signal, name)
    return lambda input: function(tf.complex(input, tf.zeros_like(input)) if to_complex else input)


def _stft(input: Tensor, n_fft: int, *, return_complex: bool = True, center: bool = True) -> Tensor:
    return tf.linalg.matrix_transpose(
        tf.signal.stft(input, n_fft, n_fft // 4, n_fft, window_fn=None)
    )


def _istft(input: Tensor, n_fft: int) -> Tensor:
    frames, step = tf.transpose(input), n_fft // 4
    joined = tf.signal.inverse_stft(frames, n_fft, step, n_fft, window_fn=None)
    overlaps = tf.signal.overlap_and_add(tf.ones([frames.shape[0], n_fft], joined.dtype), step)
    return (joined / overlaps)[n_fft // 2 : -(n_fft // 2)]


def _lu(input: Tensor) -> Any:
    lu, rows = tf.linalg.lu(input)
    lower = tf.linalg.set_diag(tf.linalg.band_part(lu, -1, 0), tf.ones_like(lu[..., 0]))
    return (
        tf.linalg.matrix_transpose(tf.one_hot(rows, lu.shape[-1], dtype=lu.dtype)),
        lower,
        tf.linalg.band_part(lu, 0, -1),
    )


def _svd(input: Tensor) -> Any:
    s, u, v = tf.linalg.svd(input)
    return u, s, v


def _permutation(pivots: Tensor) -> Tensor:
    return tf.cast(pivots - 1, tf.int32)


TRANSFORMS: Mapping[str, Function] = {
    "cholesky_solve": lambda other, factor: tf.linalg.cholesky_solve(factor, other),
    "cross": lambda a, b, *, dim: tf.linalg.cross(a, b),
    "linalg_lu": _lu,
    "linalg_matrix_exp": tf.linalg.expm,
    "linalg_solve_triangular": lambda input, other, *, upper: tf.linalg.triangular_solve(
        input, other, lower=not upper
    ),
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
