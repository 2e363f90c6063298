"""MindSpore for unamp; found through the entry point ``mindspore`` of the group ``unamp.adapters``."""

import mindspore

from unamp.adapter import check_version
from unamp.adapter.hooks import read_hooks

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=2.8,<3"
check_version("mindspore", mindspore.__version__, REQUIRES, older="older ones are not examined")

# Not before: a version may lack what these import.
read_hooks("mindspore", "unamp_mindspore").probe()
from unamp_mindspore.adapter import MindSporeAdapter  # noqa: E402

adapter = MindSporeAdapter(REQUIRES)
