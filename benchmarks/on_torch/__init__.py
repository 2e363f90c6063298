"""The measurements with PyTorch. Each module has `comparisons()`; `benchmarks.__main__` names them."""

import os
import sys

import torch

__all__ = ["without_compiled_kernels"]

torch.set_num_threads(1)


def without_compiled_kernels() -> None:
    """Have this process, a section's own, do without the compiled kernels; before its first region."""
    if "unamp_torch.compiled" in sys.modules:
        raise RuntimeError("the adapter for PyTorch is loaded already, with the kernels that it found")
    os.environ["UNAMP_TORCH_COMPILED"] = "0"
