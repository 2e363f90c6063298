"""Islands of float32 on Paddle: see `islands`."""

import paddle  # noqa: F401
from islands import test_promises  # noqa: F401
