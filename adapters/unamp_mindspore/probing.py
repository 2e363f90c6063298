"""Check that a region has an effect: this MindSpore calls the functions that unamp replaces."""

from __future__ import annotations

from functools import cache

import mindspore
import numpy as np
from mindspore import ops

from unamp.errors import FrameworkNotSupported
from unamp.policy import Policy
from unamp_mindspore.activation import Activation
from unamp_mindspore.plans import plan
from unamp_mindspore.state import DTYPES, Tensor, thread


@cache
def probe_effects() -> None:
    """Check, once in a process, that a product in a region is low.

    It is called late, not when the adapter is registered: the first computation fixes the device,
    which a program may want to set.

    Raises:
        FrameworkNotSupported: if it is not, naming MindSpore's version.
    """
    one = Tensor(np.ones((1, 1), np.float32))
    policy = Policy("O1", "bfloat16", allow=("matmul",), preset="none")
    sink, thread.sink = thread.sink, None
    region = Activation(plan(policy, None))
    token = region.enter()
    try:
        found = [ops.matmul(one, one).dtype, (one @ one).dtype]
    except SystemError:  # from MindSpore's first call, with a NumPy that it was not built for
        return
    finally:
        region.exit(token)
        thread.sink = sink
    if any(dtype is not DTYPES["bfloat16"] for dtype in found):
        raise FrameworkNotSupported(
            f"mindspore {mindspore.__version__} computes a product by other functions than unamp "
            f"replaces: in a region it is {found[0]} and {found[1]} instead of bfloat16; install a "
            "version that unamp conforms with (docs/versions.md)"
        )
