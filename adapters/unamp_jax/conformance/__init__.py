"""JAX's operations for the conformance suite; nothing of it is needed to train."""

from unamp_jax.conformance.operations import JaxOperations

__all__ = ["JaxOperations"]
