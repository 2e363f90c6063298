"""`paddle.amp` for every framework; see `unamp.dialects.paddle.amp`."""

from unamp.dialects.paddle import amp
from unamp.dialects.paddle.amp import *  # noqa: F403 - the dialect's names, once more
from unamp.dialects.paddle.amp import __all__ as _names

__all__ = ["amp", *_names]
