"""PyTorch for unamp; found through the entry point ``torch`` of the group ``unamp.adapters``."""

import torch

from unamp.adapter import check_version

__all__ = ["REQUIRES", "adapter"]

#: 2.12 is the first whose torch.compile hands objects, and not only numbers and strings, to a function that runs once per
#: trace, and guards on which they are: regions and policies inside compiled functions need that.
REQUIRES = ">=2.12,<3"
check_version("torch", torch.__version__, REQUIRES)

# Not before: other versions do not have what these import.
from unamp_torch.adapter import TorchAdapter  # noqa: E402

adapter = TorchAdapter()
