"""``python -m unamp_torch``: build the C++ kernels for the installed PyTorch.

See `unamp_torch.compiled`.
"""

import sys

from unamp_torch import compiled

if __name__ == "__main__":
    print(f"built {compiled.build(verbose='--verbose' in sys.argv)}")
