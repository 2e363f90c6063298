"""Operations of only one or two frameworks, in signatures of the suite's own; for `written`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from unamp_mindspore.conformance.layers import built
from unamp_mindspore.spellings import primitive

_INT32 = mindspore.int32


def _class(name: str) -> Any:
    found = primitive(name)
    assert found is not None, name
    return found


def _primitive(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return a function that makes the primitive with a name at each call, and calls it."""
    return lambda *tensors: _class(name)(*args, **kwargs)(*tensors)


def _in_layout(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a function of channels-last pictures take and return channels-first ones."""
    return lambda input, *args: function(input.permute(0, 2, 3, 1), *args).permute(0, 3, 1, 2)


def _strided_slice(
    input: Tensor,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    # The axes are all of them, in their order.
    return ops.strided_slice(input, tuple(starts), tuple(ends), tuple(strides))


def _scale_and_translate(input: Tensor, size: Sequence[int]) -> Tensor:
    factors = [new / old for new, old in zip(size, input.shape[1:3], strict=True)]
    return ops.ScaleAndTranslate()(input, Tensor(size, _INT32), Tensor(factors), Tensor([0.0, 0.0]))


def _crop_and_resize(input: Tensor, boxes: Tensor, size: Sequence[int]) -> Tensor:
    return ops.crop_and_resize(input, boxes, Tensor([0] * boxes.shape[0], _INT32), tuple(size))


RARE: dict[str, Callable[..., Any]] = {
    "add_n": lambda tensors: ops.addn(list(tensors)),
    "approximate_equal": ops.approximate_equal,
    "batch_to_space": lambda input, block: ops.batch_to_space_nd(
        input, [block, block], [[0, 0], [0, 0]]
    ),
    "betainc": _primitive("Betainc"),
    "bitcast": lambda input, dtype: _class("ViewDtype")()(input, getattr(mindspore, dtype)),
    "check_numerics": _primitive("CheckNumerics"),
    "clip_by_norm": lambda input, most: ops.clip_by_norm(input, most),
    "correlation": lambda a, v: _class("Correlate")("valid")(a, v),
    "crop_and_resize": _in_layout(_crop_and_resize),
    "dct": lambda input: _class("DCT")()(input, 2, input.shape[-1], -1, "ortho"),
    "divide_no_nan": _primitive("DivNoNan"),
    "fill_diagonal": lambda input, value: ops.FillDiagonal(value)(input),
    "focal_loss": lambda input, target, reduction: built(nn.FocalLoss, reduction=reduction)(
        input, target
    ),
    "fractional_avg_pool2d": _in_layout(
        lambda input, ratio: ops.FractionalAvgPool(
            [1.0, ratio, ratio, 1.0], deterministic=True, seed=1, seed2=1
        )(input)[0]
    ),
    "dice_loss": lambda input, target: built(nn.DiceLoss)(
        input, ops.one_hot(target[:, 0], input.shape[1]).astype(input.dtype)
    ),
    "dot": lambda a, b: ops.dot(a.expand_dims(0), b.expand_dims(1)).reshape(()),
    "gradient": lambda input: mindspore.numpy.gradient(input),
    "idct": lambda input: _class("IDCT")()(input, 2, input.shape[-1], -1, "ortho"),
    "in_top_k": lambda input, target, k: ops.intopk(input, target.astype(_INT32), k),
    "laplace": lambda mean, scale: ops.laplace(tuple(mean.shape), mean, scale),
    "lbeta": lambda input: built(nn.LBeta)(input[..., 0], input[..., 1]),
    "linalg_matrix_log": _primitive("MatrixLogarithm"),
    "linalg_solve_triangular": lambda input, other, upper: ops.MatrixTriangularSolve(
        lower=not upper
    )(input, other),
    "matrix_band_part": ops.matrix_band_part,
    "matrix_set_diag": ops.matrix_set_diag,
    "multiply_no_nan": _primitive("MulNoNan"),
    "rank": ops.rank,
    "resize_area": _in_layout(lambda input, size: ops.ResizeArea()(input, Tensor(size, _INT32))),
    "reverse_sequence": lambda input, lengths: ops.reverse_sequence(input, lengths, 1, 0),
    "roi_align": lambda input, boxes, size: ops.ROIAlign(size[0], size[1], 1.0)(
        input, ops.cat([ops.zeros((boxes.shape[0], 1), boxes.dtype), boxes], axis=1)
    ),
    "scale_and_translate": _in_layout(_scale_and_translate),
    "scatter_nd": lambda index, values, shape: ops.scatter_nd(index, values, tuple(shape)),
    "scatter_nd_add": ops.tensor_scatter_add,
    "shuffle": ops.shuffle,
    "space_to_batch": lambda input, block: ops.space_to_batch_nd(
        input, [block, block], [[0, 0], [0, 0]]
    ),
    "squared_difference": _primitive("SquaredDifference"),
    "squared_l2_norm": _primitive("L2Loss"),
    "strided_slice": _strided_slice,
    "tensor_scatter_update": lambda input, index, values: ops.TensorScatterUpdate()(
        input, index.expand_dims(1), values
    ),
    "truncated_normal": lambda size: ops.TruncatedNormal()(Tensor(size, _INT32)),
    "unsorted_segment_sum": lambda input, index, count: ops.unsorted_segment_sum(
        input, index, count
    ),
    "xdivy": ops.xdivy,
}
