"""The private names of PaddlePaddle that the adapter uses, checked before they are imported."""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("paddle", "unamp_paddle")
