"""The monitor of a training.

It watches the loss scale, underflow, updates that rounding swallows, and layers without a gradient.

The function `unamp.watch` makes a monitor; a package cannot have its name.
"""

from unamp.watching.history import History
from unamp.watching.monitor import Watch, WatchedStep, watch
from unamp.watching.samples import LayerSample, Sample

__all__ = ["History", "LayerSample", "Sample", "Watch", "WatchedStep", "watch"]
