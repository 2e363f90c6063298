"""The exchange of low parameters' numbers with those of their master weights.

Some of it is kept between steps.

What a parameter was given is kept (2 bytes for each number) on a CPU, where it can be compared: if
the parameter differs from that, somebody else has changed it. On other devices nothing is asked,
since the answer would have to be waited for.
"""

from __future__ import annotations

import ctypes
import math

import mindspore
import numpy as np
from mindspore import ops
from mindspore._c_expression import TensorPy

from unamp.adapter.memory import bytes_differ
from unamp_mindspore.casting import cast
from unamp_mindspore.moved import api
from unamp_mindspore.state import FLOAT32, Parameter, Tensor

# The originals, not the names, behind which a region puts other things.
_equal, _select = ops.Equal(), ops.Select()
# Writes to the place and in the dtype in which compiled graphs look for the numbers.
_copied = vars(TensorPy)["copy_"]

#: Older versions do not say where a tensor's memory is.
_TELLS = hasattr(Tensor, "data_ptr") and hasattr(Tensor, "is_contiguous")


class Exchange:
    """The low parameters of one optimizer, and their master weights."""

    def __init__(self, pairs: list[tuple[Parameter, Parameter]]) -> None:
        self._pairs = pairs
        self._given: list[np.ndarray | None] = [None] * len(pairs)

    def catch_up(self) -> None:
        """Let master weights take over values that somebody else has given their parameters."""
        if not _in_reach():
            self._given = [None] * len(self._pairs)
        else:
            api._pynative_executor.sync()  # what has been started may still write to them
        for (parameter, master), given in zip(self._pairs, self._given, strict=True):
            if given is None or _differs(parameter, given):
                value, rounded = (
                    cast(parameter, FLOAT32),
                    cast(cast(master, parameter.dtype), FLOAT32),
                )
                _copied(master, _select(_equal(rounded, value), master, value))

    def round(self) -> None:
        """Let parameters take over the rounded values of their master weights."""
        for parameter, master in self._pairs:
            _copied(parameter, master)
        if _in_reach():
            api._pynative_executor.sync()
            self._given = [
                _bytes(parameter, kept)
                for (parameter, _), kept in zip(self._pairs, self._given, strict=True)
            ]


def _in_reach() -> bool:
    """Return whether the parameters' memory is the CPU's."""
    return _TELLS and mindspore.get_context("device_target") == "CPU"


def _differs(parameter: Parameter, given: np.ndarray) -> bool:
    return (
        not parameter.is_contiguous()
        or _size(parameter) != given.nbytes
        or bool(bytes_differ(parameter.data_ptr(), given.ctypes.data, given.nbytes))
    )


def _bytes(parameter: Parameter, kept: np.ndarray | None) -> np.ndarray | None:
    """Return a copy of a parameter's memory, in memory that is kept for it.

    None where the parameter's memory is not one piece.
    """
    if not parameter.is_contiguous():
        return None
    if kept is None or kept.nbytes != _size(parameter):
        kept = np.empty(_size(parameter), np.uint8)
    ctypes.memmove(kept.ctypes.data, parameter.data_ptr(), kept.nbytes)
    return kept


def _size(parameter: Parameter) -> int:
    return 2 * int(math.prod(parameter.shape))
