"""The examples of README.md and the guides that use JAX run as pasted."""

import os
import sys

from documents import test_example  # noqa: F401
from elsewhere import python
from followed import told


def test_the_architecture_follows_an_add_that_is_traced_once() -> None:
    """Run the example in a process of its own.

    There nothing is traced before, and no other example has left anything.
    """
    code = """
import jax.numpy as jnp, unamp
from followed import added, passed
x = jnp.ones(4)
with unamp.autocast(dtype="bfloat16", allow=["add"]):
    jnp.ones(3) + jnp.ones(3)  # what is made with the first call in a region is made
    print(*passed(lambda: x + x))
assert added(x) == []
"""
    assert python("-c", code, PYTHONPATH=os.pathsep.join(sys.path)).split() == told("JAX")
