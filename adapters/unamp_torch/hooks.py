"""PyTorch's private names that this adapter uses; the file ``data/hooks.toml`` holds them, with the explanations."""

from __future__ import annotations

from unamp.adapter.hooks import read_hooks

__all__ = ["HOOKS"]

HOOKS = read_hooks("torch", "unamp_torch")
