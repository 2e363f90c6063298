"""The private names of PyTorch that the adapter uses, probed before they are imported."""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("torch", "unamp_torch")
