"""Fixtures of the conformance suite's own tests."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `pretenders`, which several files import
torch.set_num_threads(1)
