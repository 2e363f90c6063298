"""The private names of Paddle that the adapter uses, of `data/hooks.toml`, which a test holds against its source."""

from unamp.adapter.hooks import read_hooks

__all__ = ["hooks"]

hooks = read_hooks("paddle", "unamp_paddle")
