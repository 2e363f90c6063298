"""Check that a region has an effect in this Paddle, by the dtypes of a few tiny operations."""

from __future__ import annotations

import paddle

from unamp.errors import FrameworkNotSupported
from unamp.policy import Policy
from unamp_paddle.activation import Activation
from unamp_paddle.native import without_paddles_own
from unamp_paddle.plans import plan

#: One operation for each way in which calls are intercepted, with the dtypes of its result in a
#: region and outside.
_EXPECTED = {
    "Tensor.__matmul__": ("bfloat16", "float32"),
    "tensor.linalg.matmul": ("bfloat16", "float32"),
    "nn.functional.linear": ("bfloat16", "float32"),
    "nn.functional.log_softmax": ("float32", "float32"),
}


def probe_effects() -> None:
    """Check that a region casts, and that operations are float32 again once it is closed.

    Nothing is checked in static mode: the operations would become part of the user's program.

    Raises:
        FrameworkNotSupported: naming the version of Paddle, an operation, and its dtypes.
    """
    if not paddle.in_dynamic_mode():
        return
    region = Activation(plan(Policy("O1", "bfloat16"), None))
    one = paddle.to_tensor([[1.0]], "float32", place=paddle.CPUPlace())
    with without_paddles_own():
        token = region.enter()
        try:
            inside = _dtypes(one)
        finally:
            region.exit(token)
        outside = _dtypes(one)
    for name, found in zip(_EXPECTED, zip(inside, outside, strict=True), strict=True):
        if found != _EXPECTED[name]:
            raise FrameworkNotSupported(
                f"paddle {paddle.__version__}: paddle.{name} gives {found[0]} inside a region and "
                f"{found[1]} outside, not {' and '.join(_EXPECTED[name])}: unamp's hooks do not "
                "reach what this version computes with"
            )


def _dtypes(one: paddle.Tensor) -> list[str]:
    functional = paddle.nn.functional
    results = (
        one @ one,
        paddle.tensor.linalg.matmul(one, one),
        functional.linear(one, one),
        functional.log_softmax(one),
    )
    return [str(result.dtype).removeprefix("paddle.") for result in results]
