"""Print the difference of two files of final weights: ``compare.py before.npz after.npz``."""

import sys

import numpy as np

before, after = (np.load(file) for file in sys.argv[1:3])
for name in after:
    print(f"{name}: {abs(before[name] - after[name]).max():.2g}")
