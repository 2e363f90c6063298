"""MindSpore's own distributions and bijectors, in which no rule applies.

Rounded to low, a probability next to 1 becomes 1, and the logarithm of the rest is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn
from mindspore.nn.probability.bijector import Bijector
from mindspore.nn.probability.bnn_layers import NormalPosterior
from mindspore.nn.probability.distribution import Distribution

from unamp.adapter.plans import DRAWING, lowers
from unamp.policy import Policy

#: The cells that draw numbers or compute their probabilities, and the methods that users call.
METHODS: dict[type[nn.Cell], Sequence[str]] = {
    Distribution: (
        "__init__ cdf construct cross_entropy entropy kl_loss log_cdf log_prob log_survival mean "
        "mode prob sample sd survival_function var"
    ).split(),
    Bijector: ("construct", "forward", "forward_log_jacobian", "inverse", "inverse_log_jacobian"),
    NormalPosterior: ("construct",),
}

_KINDS = tuple(METHODS)


def inside_drawing(cell: nn.Cell, policy: Policy | None) -> Policy | None:
    """Return the policy inside a cell of a graph, given the policy around the cell."""
    if policy is None or not draws_in_float32(cell, policy):
        return policy
    return Policy("OD", policy.dtype)


def draws_in_float32(cell: nn.Cell, policy: Policy) -> bool:
    """Return whether a cell is a distribution or bijector that a policy would make low.

    A user's own may be a network, which follows the policy; so does a cell that holds one.
    """
    return isinstance(cell, _KINDS) and lowers(policy.rules.__getitem__, DRAWING) and _is_own(cell)


def _is_own(cell: nn.Cell) -> bool:
    inner = getattr(cell, "_cells", {})  # missing in a cell's `__init__`
    return type(cell).__module__.startswith("mindspore.") and all(map(_is_own, inner.values()))
