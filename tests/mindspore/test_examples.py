"""The examples of README.md and the guides that use MindSpore run as pasted."""

from inspect import signature

import mindspore
import numpy as np
from documents import conventions, test_example  # noqa: F401
from followed import added, told
from mindspore import nn


def test_the_architecture_follows_an_add() -> None:
    assert added(mindspore.ops.ones(4, mindspore.float32)) == told("MindSpore")


def test_conventions() -> None:
    norm, told = nn.BatchNorm2d(1), conventions("MindSpore")
    assert told["batch norm's momentum"] == str(
        signature(nn.BatchNorm2d.__init__).parameters["momentum"].default
    )
    assert told["batch norm's epsilon"] == str(norm.eps)
    assert told["layer norm's epsilon"] == str(nn.LayerNorm((1,)).epsilon)
    conv = nn.Conv2d(2, 3, (4, 5))
    assert (told["convolution's kernel"], conv.weight.shape) == (
        "out, in, row, column",
        (3, 2, 4, 5),
    )
    assert (told["linear layer's weight"], nn.Dense(2, 3).weight.shape) == ("out, in", (3, 2))
    assert told["convolution's padding"] == conv.pad_mode
    assert (told["convolution's bias"], conv.has_bias) == ("no", False)
    assert told["stride of average pooling"] == str(nn.AvgPool2d(4).stride)
    assert (told["a network starts"], norm.training) == ("evaluating", False)
    x = np.random.randn(2, 1, 2, 2).astype(np.float32)
    norm.set_train()(mindspore.Tensor(x))
    assert (told["which is the share of"], told["running variance of n numbers is divided by"]) == (
        "the old",
        "n - 1",
    )
    np.testing.assert_allclose(norm.moving_variance.asnumpy(), 0.9 + 0.1 * x.var(ddof=1), rtol=1e-6)
