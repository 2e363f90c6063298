"""One of two processes of `torch.distributed`.

It prints the rank in its trace, and the number of records.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import distributed

import unamp

distributed.init_process_group(
    "gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2
)
with unamp.trace(ranks=[1]) as trace:
    torch.ones(3).exp()
distributed.destroy_process_group()
print(json.dumps([trace.rank, len(trace.records)]))
