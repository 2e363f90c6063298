"""MindSpore's own distributions and bijectors: no rule reaches what they draw and how they rate it.

A number next to 1 that becomes 1 has an infinite logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn
from mindspore.nn.probability.bijector import Bijector
from mindspore.nn.probability.bnn_layers import NormalPosterior
from mindspore.nn.probability.distribution import Distribution

from unamp.policy import Policy, Rule

#: The cells that draw and rate numbers, and the methods by which they are called.
METHODS: dict[type[nn.Cell], Sequence[str]] = {
    Distribution: (
        "__init__ cdf construct cross_entropy entropy kl_loss log_cdf log_prob log_survival mean "
        "mode prob sample sd survival_function var"
    ).split(),
    Bijector: ("construct", "forward", "forward_log_jacobian", "inverse", "inverse_log_jacobian"),
    NormalPosterior: ("construct",),
}

#: The operations that they are made of, by which a policy reaches them.
_PARTS = ("add", "div", "log", "mul", "sub")


def inside_drawing(cell: nn.Cell, policy: Policy | None) -> Policy | None:
    """Return the policy inside of a cell in a graph, given the one around it."""
    if policy is None or not draws_in_float32(cell, policy):
        return policy
    return Policy("OD", policy.dtype)


def draws_in_float32(cell: nn.Cell, policy: Policy) -> bool:
    """Return whether a cell is one of those, and a policy must not reach it.

    One of a program's own may be a network, which follows the policy, and so does what holds it.
    """
    return (
        isinstance(cell, tuple(METHODS))
        and any(policy.rules[op] in (Rule.LOW, Rule.NARROWEST) for op in _PARTS)
        and _is_own(cell)
    )


def _is_own(cell: nn.Cell) -> bool:
    inner = getattr(cell, "_cells", {})  # none while it is made
    return type(cell).__module__.startswith("mindspore.") and all(map(_is_own, inner.values()))
