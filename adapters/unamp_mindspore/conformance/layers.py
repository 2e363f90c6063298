"""Layers whose code alone is wanted, for `written` and `rare`."""

from __future__ import annotations

from functools import cache
from typing import Any

from mindspore import nn


@cache
def built(kind: type[nn.Cell], *args: Any, **kwargs: Any) -> nn.Cell:
    """Return a layer, made once: its parameters are the caller's."""
    return kind(*args, **kwargs)
