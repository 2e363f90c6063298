"""Layers that lend their code to the functions of `written` and `rare`."""

from __future__ import annotations

from functools import cache
from typing import Any

from mindspore import nn


@cache
def built(kind: type[nn.Cell], *args: Any, **kwargs: Any) -> nn.Cell:
    """Return a layer, which is made once: its caller gives other parameters at each call."""
    return kind(*args, **kwargs)
