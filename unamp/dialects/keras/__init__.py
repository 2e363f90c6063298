"""`keras.mixed_precision` for every framework; see `unamp.dialects.keras.mixed_precision`."""

from unamp.dialects.keras import mixed_precision
from unamp.dialects.keras.mixed_precision import *  # noqa: F403 - the dialect's names, once more
from unamp.dialects.keras.mixed_precision import __all__ as _names

__all__ = ["mixed_precision", *_names]
