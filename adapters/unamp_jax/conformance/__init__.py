"""JAX's operations for the conformance suite; nothing of it is needed to train."""

from unamp_jax.conformance.calling import compile_fast

compile_fast()  # before anything computes

from unamp_jax.conformance.operations import JaxOperations  # noqa: E402

__all__ = ["JaxOperations"]
