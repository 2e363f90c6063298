"""Islands of float32 on MindSpore keep the promises of the module `islands`."""

import mindspore  # noqa: F401
from islands import test_promises  # noqa: F401
