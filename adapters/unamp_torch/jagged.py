"""Regions and jagged tensors, whose attention PyTorch writes in Python, with casts of its own in front.

Those ask native autocast whether it is on, and not what the policy says of attention. What is behind them follows it:
``_scaled_dot_product_attention_math`` is an operator that is called past its operation (`data/operators.toml`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from unamp.policy import Rule
from unamp_torch.state import thread


def casting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that casts the inputs of attention: where a policy in force runs it otherwise than low, they stay."""

    @functools.wraps(original)
    def autocast(*inputs: Any) -> Any:
        plan = thread.plan
        if plan is None or plan.delegated or plan.rule("scaled_dot_product_attention") is Rule.LOW:
            return original(*inputs)
        return inputs

    return autocast
