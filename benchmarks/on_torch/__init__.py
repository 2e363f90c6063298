"""The measurements with PyTorch. Each module has `comparisons()`; `benchmarks.__main__` names them."""

import torch

torch.set_num_threads(1)
