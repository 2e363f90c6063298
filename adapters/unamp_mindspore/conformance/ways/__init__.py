"""The ways in which MindSpore runs a function; see `unamp.adapter.ways`."""

from dataclasses import replace

from unamp.adapter import Way
from unamp_mindspore.conformance.recording import recording
from unamp_mindspore.conformance.ways import eager, graphs, training

__all__ = ["ways"]


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of MindSpore."""
    return tuple(map(_leaving_nothing, (*eager.WAYS, *graphs.ways(), *training.WAYS)))


def _leaving_nothing(way: Way) -> Way:
    """Return a way after which MindSpore does not record, even if the function raised."""
    if way.run is None:
        assert way.value_and_grad is not None
        return replace(way, value_and_grad=recording()(way.value_and_grad))
    return replace(way, run=recording()(way.run))
