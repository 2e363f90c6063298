"""The examples of README.md and the guides that use PaddlePaddle run as pasted."""

import numpy as np
import paddle
from documents import conventions, test_example  # noqa: F401
from followed import added, told


def test_the_architecture_follows_an_add() -> None:
    assert added(paddle.ones([4])) == told("PaddlePaddle")


def test_conventions() -> None:
    norm, told = paddle.nn.BatchNorm2D(1), conventions("Paddle")
    assert told["batch norm's momentum"] == str(norm._momentum)
    assert told["batch norm's epsilon"] == str(norm._epsilon)
    assert told["layer norm's epsilon"] == str(paddle.nn.LayerNorm(1)._epsilon)
    conv = paddle.nn.Conv2D(2, 3, (4, 5))
    assert (told["convolution's kernel"], tuple(conv.weight.shape)) == (
        "out, in, row, column",
        (3, 2, 4, 5),
    )
    assert (told["linear layer's weight"], tuple(paddle.nn.Linear(2, 3).weight.shape)) == (
        "in, out",
        (2, 3),
    )
    assert (told["convolution's padding"], conv._padding) == ("0", 0)
    assert (told["convolution's bias"], conv.bias is None) == ("yes", False)
    pooled = paddle.nn.AvgPool2D(4)(paddle.ones([1, 1, 8, 8]))
    assert (told["stride of average pooling"], tuple(pooled.shape)) == (
        "the kernel's size",
        (1, 1, 2, 2),
    )
    assert (told["a network starts"], norm.training) == ("training", True)
    norm(x := paddle.randn([2, 1, 2, 2]))
    assert (told["which is the share of"], told["running variance of n numbers is divided by"]) == (
        "the old",
        "n",
    )
    np.testing.assert_allclose(
        norm._variance.numpy(), 0.9 + 0.1 * x.var(unbiased=False).item(), rtol=1e-6
    )
