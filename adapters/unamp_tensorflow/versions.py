"""The versions of TensorFlow that this adapter works with; asked before anything else of it is imported."""

from __future__ import annotations

__all__ = ["REQUIRES"]

REQUIRES = ">=2.18,<3"
