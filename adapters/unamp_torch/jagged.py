"""Regions and jagged tensors, whose attention PyTorch writes in Python, with casts in front.

Those casts ask whether native autocast is on, and not for the policy's rule for attention. The
operator behind them, ``_scaled_dot_product_attention_math``, does follow the rule: it is one that
is called past its operation (`data/operators.toml`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unamp.adapter.replacing import as_replacement
from unamp.policy import Rule
from unamp_torch.state import thread

if TYPE_CHECKING:
    import torch


@as_replacement
def casting(
    original: Callable[..., tuple[torch.Tensor | None, ...]], *inputs: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    """Wrap the function that casts attention's inputs: without the rule LOW, they stay."""
    plan = thread.plan
    if plan is None or plan.delegated or plan.rule("scaled_dot_product_attention") is Rule.LOW:
        return original(*inputs)
    return inputs
