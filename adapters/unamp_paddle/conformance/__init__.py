"""Paddle's functions in conformance's signatures. Nothing that a user imports loads this."""

from unamp_paddle.conformance.operations import PaddleOperations

__all__ = ["PaddleOperations"]
