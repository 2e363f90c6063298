"""MindSpore for unamp; found through the entry point ``mindspore`` of the group ``unamp.adapters``."""

import mindspore

from unamp.adapter import check_version

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=2.8,<3"
check_version("mindspore", mindspore.__version__, REQUIRES, older="older ones are not examined")

# Not before: other versions do not have what these import.
from unamp_mindspore.adapter import MindSporeAdapter  # noqa: E402

adapter = MindSporeAdapter(REQUIRES)
