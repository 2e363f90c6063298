"""Islands of float32 on MindSpore: see `islands`."""

import mindspore  # noqa: F401
from islands import test_promises  # noqa: F401
