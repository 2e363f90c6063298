"""Paddle's functions in the conformance suite's signatures. No user's import loads this."""

from unamp_paddle.conformance.operations import PaddleOperations

__all__ = ["PaddleOperations"]
