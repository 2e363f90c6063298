"""The measurements with PyTorch. Each module has `comparisons()`; `benchmarks.__main__` names them."""

import os

import torch

if "OMP_NUM_THREADS" not in os.environ:  # a setting of conformance/machines.toml may ask for more
    torch.set_num_threads(1)
