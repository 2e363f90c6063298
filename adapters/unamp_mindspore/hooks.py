"""The private names of MindSpore that the adapter uses, checked before they are imported."""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("mindspore", "unamp_mindspore")
