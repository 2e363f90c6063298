"""Processes that see no GPU, for what is about devices that are not here."""

from __future__ import annotations

import torch

#: The environment of a process that sees none has this.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}

#: Files of tests that need such a process: where there is a GPU,
#: `test_devices.py` runs them in one.
FILES = ["test_absent_devices.py"] if torch.cuda.is_available() else []
