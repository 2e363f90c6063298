"""Islands of float32 on Paddle keep the promises of the module `islands`."""

import paddle  # noqa: F401
from islands import test_promises  # noqa: F401
