"""Containers that users have registered with PyTorch, or with optree, which is as widely used.

PyTorch's are those of `torch.utils._pytree.register_pytree_node`.
"""

from __future__ import annotations

import sys

from torch.utils._pytree import tree_flatten, tree_unflatten

from unamp.adapter.arguments import Opened


def opened(value: object) -> Opened | None:
    """Return the leaves of a registered container; with optree, of one without a namespace.

    See `unamp.adapter.registered`.
    """
    leaves, form = tree_flatten(value)
    if not (len(leaves) == 1 and leaves[0] is value):
        return leaves, lambda others: tree_unflatten(others, form)
    optree = sys.modules.get("optree")
    if optree is None:
        return None
    leaves, structure = optree.tree_flatten(value, none_is_leaf=True)
    return None if len(leaves) == 1 and leaves[0] is value else (leaves, structure.unflatten)
