"""Shadow runs: a reported operation computed a second time, low, for `unamp.trace(shadow=...)`.

An adapter computes it from copies of what could change, without gradients, with no policy in force
and unreported, so that the network's results and state stay the same. An operation that it cannot
compute like this is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unamp.adapter.framework_types import Row
from unamp.adapter.records import OpRecord, Shadow
from unamp.dtypes import ELIGIBLE, FLOAT8, FLOAT32, LOW_DTYPES

#: Common reasons to leave an operation out.
DRAWS = "it draws random numbers"
IN_PLACE = "it changes what it is given"
NAMED = "its caller named the dtype, which no rule changes"
CHANGES_STATE = "it changes the state of its layer (running statistics, a seed)"
NO_PRODUCT = "float8 is for products of two matrices"

#: The operations that are computed from float8, by canonical name, each with the positions of its
#: two factors among the arguments.
PRODUCTS = {
    **dict.fromkeys(("addbmm", "addmm", "addmv", "baddbmm"), (1, 2)),
    **dict.fromkeys(("bmm", "einsum", "linear", "matmul", "mm", "mv"), (0, 1)),
}

#: Operations that draw random numbers unless their caller hands some over.
DRAWING = frozenset(
    {
        "fractional_avg_pool2d",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "gumbel_softmax",
        "nce_loss",
        "rrelu",
    }
)

_SHOWN = 200  # the most characters of a framework's message


class LeftOut(Exception):
    """An operation is not computed a second time, or not kept; the message says why."""


def said(error: Exception) -> str:
    """Return an error that a framework raised, in one short line."""
    line = "".join(
        c if c.isprintable() else " " for c in f"{type(error).__name__}: {error}".strip()
    )
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def shadow(
    dtype: str, record: OpRecord, own: Callable[[], Sequence[Row]], low: Callable[[], Sequence[Row]]
) -> Shadow:
    """Return an operation's own error in a low dtype, or why it is not known.

    Whatever `low` raises becomes a reason.

    Args:
        dtype: the low dtype.
        record: the operation, with the dtypes of its inputs, result and computation.
        own: returns the floating results of the network's run, each as one row of float64 numbers.
        low: computes the operation low, from the same inputs, and returns its results likewise.
    """
    if dtype in FLOAT8 and record.op not in PRODUCTS:
        return Shadow(dtype, left_out=NO_PRODUCT)
    if why := _pointless(record):
        return Shadow(dtype, left_out=why)
    try:
        second = low()
        return Shadow.of(dtype, own(), second)
    except LeftOut as left_out:
        return Shadow(dtype, left_out=str(left_out))
    except Exception as error:
        # a framework may raise any error here; the network's own run went well, and must go on
        return Shadow(dtype, left_out=f"in {dtype} it raises {said(error)}")


def _pointless(record: OpRecord) -> str:
    """Return why there is nothing to compare; empty where there is."""
    if not record.inputs:
        return "it has no floating input"
    if record.output is None:
        return "it has no floating result"
    if other := sorted({*record.inputs}.difference(ELIGIBLE)):
        return f"it has an input in {other[0]}, which no rule casts"
    if record.emulated or record.compute in LOW_DTYPES:
        return "it ran low in the network"
    if FLOAT32 not in record.inputs and record.output in LOW_DTYPES:
        return f"its result is {record.output}"
    return ""
