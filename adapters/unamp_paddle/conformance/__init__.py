"""Paddle's functions in the signatures that conformance calls them by. Nothing that a user imports loads this."""

from unamp_paddle.conformance.operations import PaddleOperations

__all__ = ["PaddleOperations"]
