"""Operations of only one or two frameworks, in signatures of the suite's own; for `bindings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from unamp._function_types import Function
from unamp_tensorflow.conformance.signatures import channels, first, keras, last, loss, pool
from unamp_tensorflow.state import Tensor


def _filters(weight: Tensor) -> Tensor:
    """Return filters for each channel with channels last."""
    return tf.transpose(weight, [2, 3, 0, 1])


def _fractional_avg_pool(input: Tensor, ratio: float) -> Tensor:
    return first(tf.nn.fractional_avg_pool(last(input), [1.0, ratio, ratio, 1.0], seed=1)[0])


def _crop_and_resize(input: Tensor, boxes: Tensor, size: Sequence[int]) -> Tensor:
    return first(
        tf.image.crop_and_resize(last(input), boxes, tf.zeros(boxes.shape[0], tf.int32), size)
    )


def _scale_and_translate(input: Tensor, size: Sequence[int]) -> Tensor:
    factors = [new / old for new, old in zip(size, input.shape[2:], strict=True)]
    return first(
        tf.raw_ops.ScaleAndTranslate(
            images=last(input), size=size, scale=factors, translation=[0.0, 0.0]
        )
    )


def _crop(input: Tensor, shape: Sequence[int], offsets: Sequence[int]) -> Tensor:
    return keras("layers.Cropping1D")((offsets[1], input.shape[1] - shape[1] - offsets[1]))(input)


def _separable_conv2d(input: Tensor, depthwise: Tensor, pointwise: Tensor) -> Tensor:
    points = tf.transpose(pointwise, [2, 3, 1, 0])
    return first(
        tf.nn.separable_conv2d(last(input), _filters(depthwise), points, [1, 1, 1, 1], "VALID")
    )


def _dilation2d(input: Tensor, filters: Tensor) -> Tensor:
    ones = [1, 1, 1, 1]
    return first(
        tf.nn.dilation2d(last(input), tf.transpose(filters, [1, 2, 0]), ones, "VALID", "NHWC", ones)
    )


def _strided_slice(
    input: Tensor,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    # The axes are all of them, in their order.
    return tf.strided_slice(input, starts, ends, strides)


def _focal_loss(input: Tensor, target: Tensor, *, reduction: str) -> Tensor:
    focal = keras("losses.binary_focal_crossentropy")
    return focal(target[..., None], input[..., None], apply_class_balancing=True, from_logits=True)


def _projected(input: Tensor, transform: Sequence[float]) -> Tensor:
    return first(
        tf.raw_ops.ImageProjectiveTransformV3(
            images=last(input),
            transforms=[list(transform)],
            output_shape=input.shape[2:],
            fill_value=0.0,
            interpolation="BILINEAR",
        )
    )


RARE: Mapping[str, Function] = {
    "approximate_equal": lambda a, b: tf.raw_ops.ApproximateEqual(x=a, y=b),
    "avg_pool": pool(tf.nn.avg_pool),
    "batch_to_space": channels(
        lambda input, block: tf.batch_to_space(input, [block, block], [[0, 0], [0, 0]])
    ),
    "bitcast": lambda input, dtype: tf.bitcast(input, dtype),
    "check_numerics": lambda input: tf.debugging.check_numerics(input, "not finite"),
    "circle_loss": lambda input, target: keras("losses.circle")(target, input, gamma=8.0),
    "compute_average_loss": tf.nn.compute_average_loss,
    "correlation": lambda a, v: keras("ops.correlate")(a, v),
    "crop": _crop,
    "crop_and_resize": _crop_and_resize,
    "depthwise_conv2d": lambda input, weight: first(
        tf.nn.depthwise_conv2d(last(input), _filters(weight), [1, 1, 1, 1], "VALID")
    ),
    "dct": lambda input: tf.signal.dct(input, norm="ortho"),
    "idct": lambda input: tf.signal.idct(input, norm="ortho"),
    "image_projective_transform": _projected,
    "snapshot": lambda input: tf.raw_ops.Snapshot(input=input),
    "dice_loss": lambda input, target: keras("losses.dice")(
        tf.one_hot(target[:, 0], input.shape[1], dtype=input.dtype), input
    ),
    "dilation2d": _dilation2d,
    "dynamic_partition": lambda input, index, count: tf.dynamic_partition(
        input, tf.cast(index, tf.int32), count
    ),
    "dynamic_stitch": lambda a, b: tf.dynamic_stitch([[0, 2, 4], [1, 3, 5]], [a, b]),
    "focal_loss": _focal_loss,
    "fractional_avg_pool2d": _fractional_avg_pool,
    "fresnel": lambda input: tf.math.special.fresnel_sin(input),
    "gaussian_noise": lambda input: keras("layers.GaussianNoise")(0.5, dtype=input.dtype.name)(
        input, training=True
    ),
    "hinge_loss": loss("hinge"),
    "in_top_k": lambda input, target, k: tf.math.in_top_k(target, input, k),
    "log_cosh_loss": loss("logcosh"),
    "log_loss": lambda input, label: tf.compat.v1.losses.log_loss(
        label, input, epsilon=1e-4, reduction="none"
    ),
    "mape_loss": loss("mape"),
    "max_pool": pool(tf.nn.max_pool),
    "msle_loss": loss("msle"),
    "psnr": lambda a, b: tf.image.psnr(last(a), last(b), 1.0),
    "quantize_and_dequantize": lambda input, low, high, bits: (
        tf.quantization.quantize_and_dequantize_v2(
            input, low, high, num_bits=bits, range_given=True
        )
    ),
    "resize_area": channels(lambda input, size: tf.raw_ops.ResizeArea(images=input, size=size)),
    "reverse_sequence": lambda input, lengths: tf.reverse_sequence(
        input, lengths, seq_axis=1, batch_axis=0
    ),
    "scale": lambda input, scale, bias: keras("layers.Rescaling")(scale, bias)(input),
    "scale_and_translate": _scale_and_translate,
    "separable_conv2d": _separable_conv2d,
    "shuffle": tf.random.shuffle,
    "space_to_batch": channels(
        lambda input, block: tf.space_to_batch(input, [block, block], [[0, 0], [0, 0]])
    ),
    "strided_slice": _strided_slice,
    "tensor_scatter_update": lambda input, index, values: tf.tensor_scatter_nd_update(
        input, index[:, None], values
    ),
    "ssim": lambda a, b: tf.image.ssim(last(a), last(b), 1.0),
    "total_variation": lambda input: tf.image.total_variation(last(input)),
    "linalg_tridiagonal_solve": lambda lower, middle, upper, other: tf.linalg.tridiagonal_solve(
        (upper, middle, lower), other, diagonals_format="sequence"
    ),
    "truncated_normal": tf.random.truncated_normal,
}
