"""The ways in which MindSpore runs a function. `unamp.adapter.ways` explains what is in one."""

from unamp.adapter import Way
from unamp_mindspore.conformance.ways import eager, graphs, training

__all__ = ["ways"]


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of MindSpore."""
    return (*eager.WAYS, *graphs.ways(), *training.WAYS)
