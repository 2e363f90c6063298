"""PyTorch for unamp; found through the entry point ``torch`` of the group ``unamp.adapters``."""

import torch

from unamp.adapter import check_version

__all__ = ["REQUIRES", "adapter"]

#: Before 2.11 its own autocast keeps a cast made under `torch.no_grad` for later uses with gradients.
REQUIRES = ">=2.11,<3"
check_version("torch", torch.__version__, REQUIRES)

# Not before: other versions do not have what these import.
from unamp_torch.adapter import TorchAdapter  # noqa: E402

adapter = TorchAdapter()
