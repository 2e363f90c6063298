"""Patches that few regions need, applied when first needed, until the last region closes.

`unamp_torch.patches` undoes them then. (The compiled kernels look at ``LASTING.applied``.)
"""

from __future__ import annotations

from unamp.adapter.patching import Patches

LASTING = Patches(lambda: ())
