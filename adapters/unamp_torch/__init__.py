"""PyTorch for unamp; found through the entry point ``torch`` of the group ``unamp.adapters``."""

import torch

from unamp import amp_warnings
from unamp.adapter import Adapter, check_version
from unamp_torch.hooks import HOOKS

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=2.10,<3"
check_version(
    "torch",
    torch.__version__,
    REQUIRES,
    older="older ones keep no float32 gradient of a low parameter",
)

HOOKS.probe()
amp_warnings.newer_than_examined("torch", torch.__version__, HOOKS.examined)

# Imported last: other versions lack names that these modules import.
from unamp_torch.adapter import TorchAdapter  # noqa: E402

adapter: Adapter = TorchAdapter(REQUIRES)
