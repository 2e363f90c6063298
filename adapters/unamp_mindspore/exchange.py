"""The exchange of numbers between low parameters and their master weights.

On a CPU the rounded numbers of the last step are kept (2 bytes each): where a parameter differs
from them, other code has changed it. On other devices nothing is compared, since the process would
have to wait for the answer.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
from mindspore import ops
from mindspore._c_expression import TensorPy

from unamp.adapter.memory import bytes_differ
from unamp_mindspore.casting import cast
from unamp_mindspore.moved import api
from unamp_mindspore.state import FLOAT32, Parameter, on_cpu

# The originals, held here: a region replaces the names.
_equal, _select = ops.Equal(), ops.Select()
# It writes in place and keeps the dtype: compiled graphs read the numbers there.
_copied = vars(TensorPy)["copy_"]


class Exchange:
    """The low parameters of one optimizer, and their master weights."""

    def __init__(self, pairs: list[tuple[Parameter, Parameter]]) -> None:
        self._pairs = pairs
        self._given: list[np.ndarray | None] = [None] * len(pairs)

    def catch_up(self) -> None:
        """Update the master weights of parameters that other code has changed."""
        if not on_cpu():
            self._given = [None] * len(self._pairs)
        else:
            api._pynative_executor.sync()  # operations that still run may write to the parameters
        for (parameter, master), given in zip(self._pairs, self._given, strict=True):
            if given is None or _differs(parameter, given):
                value = cast(parameter, FLOAT32)
                rounded = cast(cast(master, parameter.dtype), FLOAT32)
                _copied(master, _select(_equal(rounded, value), master, value))

    def round(self) -> None:
        """Write the rounded values of master weights into their parameters."""
        for parameter, master in self._pairs:
            _copied(parameter, master)
        if on_cpu():
            api._pynative_executor.sync()
            self._given = [
                _bytes(parameter, kept)
                for (parameter, _), kept in zip(self._pairs, self._given, strict=True)
            ]


def _differs(parameter: Parameter, given: np.ndarray) -> bool:
    return (
        not parameter.is_contiguous()
        or _size(parameter) != given.nbytes
        or bool(bytes_differ(parameter.data_ptr(), given.ctypes.data, given.nbytes))
    )


def _bytes(parameter: Parameter, kept: np.ndarray | None) -> np.ndarray | None:
    """Return a copy of a parameter's memory, written into `kept` where that has the size.

    None where the parameter's memory is not contiguous.
    """
    if not parameter.is_contiguous():
        return None
    if kept is None or kept.nbytes != _size(parameter):
        kept = np.empty(_size(parameter), np.uint8)
    ctypes.memmove(kept.ctypes.data, parameter.data_ptr(), kept.nbytes)
    return kept


def _size(parameter: Parameter) -> int:
    return 2 * int(math.prod(parameter.shape))
