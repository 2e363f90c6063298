"""MindSpore for unamp; found through the entry point ``mindspore`` of the group ``unamp.adapters``."""

from unamp_mindspore.adapter import MindSporeAdapter

__all__ = ["adapter"]

adapter = MindSporeAdapter()
