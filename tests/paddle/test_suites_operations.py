"""The suite's operations on Paddle have the canonical arguments."""

import numpy as np
import paddle
from unamp_paddle.conformance.operations import PaddleOperations


def test_running_statistics_of_the_suites_operations_take_the_canonical_momentum():
    """Paddle's momentum is the share of the old statistics; the canonical one, of the new."""
    operations = PaddleOperations()
    x = paddle.randn([4, 3, 8, 8])
    mean, variance, ones, zeros = (
        operations.tensor(np.full(3, value, np.float32)) for value in (0.0, 1.0, 1.0, 0.0)
    )
    operations["batch_norm"](x, mean, variance, ones, zeros, training=True, momentum=0.25)
    assert np.allclose(mean.numpy(), 0.25 * x.numpy().mean((0, 2, 3)), atol=1e-6)
    assert np.allclose(variance.numpy(), 0.75 + 0.25 * x.numpy().var((0, 2, 3)), atol=1e-6)
