"""Operations of only one or two frameworks, in signatures of the suite's own; for `operations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle.nn import functional as F

from unamp_paddle.hooks import HOOKS
from unamp_paddle.state import Tensor

_C_ops = HOOKS.load("paddle._C_ops")


def _boxed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of boxes that are all in one picture."""
    return lambda input, boxes, size: function(
        input, boxes, paddle.to_tensor([boxes.shape[0]], dtype="int32"), size
    )


def _pool_in(name: str, rank: int, layout: str) -> Callable[..., Tensor]:
    def pool(input: Tensor, size: int) -> Tensor:
        sizes, none = [size] * rank, [0] * rank
        return getattr(_C_ops, name)(
            input, sizes, sizes, none, False, True, layout, "avg", False, False, "EXPLICIT",
            *([False] if rank == 3 else []),
        )  # fmt: skip

    return pool


def _rnnt_loss(input: Tensor, *targets_and_lengths: Tensor, reduction: str) -> Tensor:
    whole = (each.astype("int32") for each in targets_and_lengths)
    return F.rnnt_loss(input, *whole, fastemit_lambda=0.0, reduction=reduction)


RARE: Mapping[str, Callable[..., Any]] = {
    "bitcast": lambda input, dtype: paddle.Tensor.view(input, dtype),
    "clip_by_norm": lambda input, most: _C_ops.clip_by_norm(input, most),
    "dirichlet": lambda input: _C_ops.dirichlet(input),
    "fake_quantize_dequantize_abs_max": lambda input, bits: _C_ops.fake_quantize_dequantize_abs_max(
        input, bits, 1
    ),
    "focal_loss": lambda input, target, reduction: F.sigmoid_focal_loss(
        input, target, reduction=reduction
    ),
    "deform_conv2d": lambda input, offset, weight: paddle.vision.ops.deform_conv2d(
        input, offset, weight
    ),
    "fused_rotary_position_embedding": lambda input: (
        paddle.incubate.nn.functional.fused_rotary_position_embedding(input)[0]
    ),
    "hinge_loss": lambda input, target, reduction: _C_ops.hinge_loss(input, target),
    "l1_norm": lambda input: _C_ops.l1_norm(input),
    "squared_l2_norm": lambda input: _C_ops.squared_l2_norm(input),
    "margin_cross_entropy": lambda input, target: F.margin_cross_entropy(
        input, target, reduction=None
    ),
    "multiplex": lambda inputs, index: paddle.multiplex(inputs, index.astype("int32")),
    "pool2d": _pool_in("pool2d", 2, "NCHW"),
    "pool3d": _pool_in("pool3d", 3, "NCDHW"),
    "psroi_pool": _boxed(paddle.vision.ops.psroi_pool),
    "roi_align": _boxed(paddle.vision.ops.roi_align),
    "roi_pool": _boxed(paddle.vision.ops.roi_pool),
    "rnnt_loss": _rnnt_loss,
    "scale": lambda input, scale, bias: paddle.scale(input, scale, bias),
    "send_u_recv": paddle.geometric.send_u_recv,
    "temporal_shift": lambda input, segments: F.temporal_shift(input, segments),
    "fill_diagonal": lambda input, value: _C_ops.fill_diagonal(input, value, 0, False),
    "truncated_normal": lambda size: _C_ops.truncated_gaussian_random(
        list(size), 0.0, 1.0, 0, -2.0, 2.0, paddle.float32, paddle.CPUPlace()
    ),
}
