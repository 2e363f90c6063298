"""`mindspore.amp` for every framework; see `unamp.dialects.mindspore.amp`."""

from unamp.dialects.mindspore import amp
from unamp.dialects.mindspore.amp import *  # noqa: F403 - the dialect's names, once more
from unamp.dialects.mindspore.amp import __all__ as _names

__all__ = ["amp", *_names]
