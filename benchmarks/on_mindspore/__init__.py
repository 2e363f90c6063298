"""unamp on MindSpore, beside MindSpore without it."""

from contextlib import suppress

import mindspore

# With another version of NumPy than MindSpore was compiled with, the first call with numbers fails.
with suppress(SystemError):
    mindspore.ops.zeros((1,))
