"""The measurements with PyTorch; `benchmarks.sections` names the functions."""

import os

import torch

if "OMP_NUM_THREADS" not in os.environ:  # a setting of conformance/machines.toml may set more
    torch.set_num_threads(1)
