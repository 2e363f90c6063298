"""The private names of PyTorch that the adapter uses, probed before they are imported."""

from dataclasses import replace

import torch.distributed

from unamp.adapter.hooks import Hooks, HookTable, read_hooks


def _in_this_build(table: HookTable) -> HookTable:
    """Return a table without the names of `torch.distributed`, where PyTorch is built without it.

    Nothing calls them there, and their modules cannot be imported.
    """
    if torch.distributed.is_available():
        return table
    late = {o: names for o, names in table.when_used.items() if "torch.distributed." not in o}
    return replace(table, when_used=late)


HOOKS = Hooks("torch", _in_this_build(read_hooks("torch", "unamp_torch").table))
