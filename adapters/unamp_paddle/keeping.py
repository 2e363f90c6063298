"""Keeping the arguments of calls, in the canonical signature of its operation, for `unamp.trace(keep=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle

from unamp.adapter.keeping import Arguments, Kept, one_number, written
from unamp.adapter.observing import traces, unobserved
from unamp.adapter.shadowing import LeftOut
from unamp_paddle.casting import floats, tensors
from unamp_paddle.state import Tensor, thread

__all__ = ["after", "before"]


def before(op: str, args: Any, kwargs: dict[str, Any]) -> Kept | None:
    """Return the arguments of a call, before it runs; None where no trace keeps calls."""
    if traces.keeper is None or not paddle.in_dynamic_mode():
        return None
    return traces.keeper.before(op, lambda: written(op, _WRITTEN, args, kwargs), _array)


def after(kept: Kept, result: Any) -> Any:
    """Write a call down that has run."""
    return kept.after(next((tensor for tensor in tensors(result) if floats(tensor)), None))


def _array(value: Any) -> Any:
    """Return the numbers of a tensor in NumPy, in its dtype."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Tensor) or not value._is_initialized() or not value.is_dense():
        raise LeftOut(f"an argument cannot be written down: {type(value).__name__}")
    with unobserved(thread), paddle.no_grad():
        array = value.numpy()
    if value.dtype == paddle.bfloat16:  # how Paddle hands it over: the bits, as whole numbers
        from ml_dtypes import bfloat16

        return array.view(bfloat16)
    return array


# --- Paddle's signatures, and the canonical ones ------------------------------------------------------------------------------


def _linear(x: Any, weight: Any, bias: Any = None, name: Any = None) -> Arguments:
    return (x, _array(weight).T, bias), {}


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False, name: Any = None) -> Arguments:
    if transpose_x or transpose_y:
        raise LeftOut("it transposes an input, for which the canonical signature has no argument")
    return (x, y), {}


def _softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Arguments:
    if dtype is not None:
        raise LeftOut("its caller named the dtype")
    return (x,), {"dim": axis}


def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-5, name: Any = None
) -> Arguments:
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    return (x, shape, weight, bias), {} if epsilon == 1e-5 else {"eps": epsilon}


def _gelu(x: Any, approximate: bool = False, name: Any = None) -> Arguments:
    return (x,), {"approximate": "tanh"} if approximate else {}


def _conv(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, padding_algorithm: str = "EXPLICIT",
    dilation: Any = 1, groups: int = 1, data_format: str = "NCHW", channel_dim: int = 1, op_type: str = "",
    use_cudnn: bool = True, name: Any = None,
) -> Arguments:  # fmt: skip
    if (
        padding_algorithm != "EXPLICIT"
        or channel_dim != 1
        or (isinstance(padding, (list, tuple)) and len(padding) != x.ndim - 2)
    ):
        raise LeftOut("its padding or its layout has no canonical form")
    attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    found = {name: one_number(each) for name, each in attributes.items()}
    return (x, weight, bias), {name: each for name, each in found.items() if each != plain[name]}


def _max_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, return_mask: bool = False, ceil_mode: bool = False,
    data_format: str = "NCHW", name: Any = None,
) -> Arguments:  # fmt: skip
    if padding != 0 or return_mask or ceil_mode or data_format != "NCHW" or stride not in (None, kernel_size):
        raise LeftOut("only a pooling without padding, whose stride is its kernel's size, has a canonical form here")
    return (x, kernel_size), {}


_WRITTEN: Mapping[str, Callable[..., Arguments]] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log_softmax": _softmax,
    "matmul": _matmul,
    "max_pool2d": _max_pool2d,
    "softmax": _softmax,
}
