"""PaddlePaddle for unamp; found through the entry point ``paddle`` of the group ``unamp.adapters``."""

from unamp_paddle.adapter import PaddleAdapter

__all__ = ["adapter"]

adapter = PaddleAdapter()
