"""The private names of JAX and the libraries on it that the adapter uses.

They are probed before they are imported.
"""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("jax", "unamp_jax")
