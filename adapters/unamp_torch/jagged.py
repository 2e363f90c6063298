"""Regions and jagged tensors, whose attention PyTorch writes in Python, with casts in front.

Those ask native autocast whether it is on, and not what the policy says of attention. What is
behind them follows it: ``_scaled_dot_product_attention_math`` is an operator that is called past
its operation (`data/operators.toml`).
"""

from __future__ import annotations

from typing import Any

from unamp._function_types import Function
from unamp.adapter.replacing import as_replacement
from unamp.policy import Rule
from unamp_torch.state import thread


@as_replacement
def casting(original: Function, *inputs: Any) -> Any:
    """Wrap the function that casts attention's inputs: they stay where its rule is not LOW."""
    plan = thread.plan
    if plan is None or plan.delegated or plan.rule("scaled_dot_product_attention") is Rule.LOW:
        return original(*inputs)
    return inputs
