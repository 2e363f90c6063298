"""MindSpore for unamp, found through the entry point ``mindspore`` in ``unamp.adapters``."""

import mindspore

from unamp import amp_warnings
from unamp.adapter import Adapter, check_version
from unamp_mindspore.hooks import HOOKS

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=2.8,<3"
check_version("mindspore", mindspore.__version__, REQUIRES, older="older ones are not examined")

# Imported late: a version that is refused here may lack the names that the adapter imports.
HOOKS.probe()
amp_warnings.newer_than_examined("mindspore", mindspore.__version__, HOOKS.examined)
from unamp_mindspore.adapter import MindSporeAdapter  # noqa: E402

adapter: Adapter = MindSporeAdapter(REQUIRES)
