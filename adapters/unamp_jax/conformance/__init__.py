"""JAX's operations for the conformance suite; training needs none of these modules."""

from unamp_jax.conformance.operations import JaxOperations

__all__ = ["JaxOperations"]
