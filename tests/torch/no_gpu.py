"""Processes that see no GPU, for tests about devices that are absent."""

from __future__ import annotations

import torch

#: The environment of a process that must see no GPU.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}

#: Test files that need such a process: where there is a GPU, `test_devices.py` runs them in one.
FILES = ["test_absent_devices.py"] if torch.cuda.is_available() else []
