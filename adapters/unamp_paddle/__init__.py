"""PaddlePaddle for unamp, found through the entry point ``paddle`` in ``unamp.adapters``."""

import paddle

from unamp import amp_warnings
from unamp.adapter import Adapter, check_version
from unamp_paddle.hooks import HOOKS

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=3.2,<4"
OLDER = "on the CPU, older ones cast to float16 towards zero, where all others round to the nearest"
check_version("paddle", paddle.__version__, REQUIRES, older=OLDER)
HOOKS.probe()
amp_warnings.newer_than_examined("paddle", paddle.__version__, HOOKS.examined)

# Imported late: a version that is refused above may lack the names that it imports.
from unamp_paddle.adapter import PaddleAdapter  # noqa: E402

adapter: Adapter = PaddleAdapter(REQUIRES)
