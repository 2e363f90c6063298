"""The ways in which PyTorch runs a function; `unamp.adapter.ways` explains them."""

from unamp.adapter import Way
from unamp_torch.conformance.ways import control_flow, eager, gradients, graphs, replicated

__all__ = ["ways"]


#: The ways that PyTorch itself does not have for tensors of a class that is written in Python: it
#: makes no further subclass of them, runs a user's operators below every autocast, its own too, and
#: differentiates forward on other devices.
_NOT_IN_PYTHON = ("tensors of a subclass", "in an operator of the user's", "func.jvp")


def ways(*, second: bool = False) -> tuple[Way, ...]:
    """Return the ways of this version of PyTorch.

    Args:
        second: whether to return the ways for tensors on the second device, which no graph takes.
    """
    if second:
        return tuple(
            way for way in (*eager.WAYS, *gradients.WAYS) if not way.name.startswith(_NOT_IN_PYTHON)
        )
    return (*eager.WAYS, *graphs.ways(), *control_flow.ways(), *gradients.WAYS, *replicated.ways())
