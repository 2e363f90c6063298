"""The measurements with PyTorch; `benchmarks.sections` names the functions that make them."""

import os

import torch

if "OMP_NUM_THREADS" not in os.environ:  # a setting of conformance/machines.toml may ask for more
    torch.set_num_threads(1)
