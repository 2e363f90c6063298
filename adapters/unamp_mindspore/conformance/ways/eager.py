"""Functions in PyNative mode: decorated, in threads, recomputed, and beside MindSpore's own AMP."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import mindspore
from mindspore import amp, ops

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import coroutine, decorated, generator, in_a_thread
from unamp_mindspore.conformance.ways.opening import (
    NO_KERNEL,
    RECORDS,
    Holding,
    decorated_cell,
    inside,
)


def _decorated_construct(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    return decorated_cell(function, region)(*inputs)


def _recomputed(
    function: Function, region: OpenRegion, inputs: Sequence[Any], *, around: bool
) -> Any:
    if not around:
        return mindspore.recompute(Holding(inside(function, region)), *inputs)
    with region():
        return mindspore.recompute(Holding(function), *inputs)


def _recomputed_cell(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    cell = Holding(function)
    cell.recompute()
    with region():
        return cell(*inputs)


# --- MindSpore's own AMP --------------------------------------------------------------------------


def _own(function: Function) -> Any:
    """Return a function under MindSpore's own AMP."""
    return amp.auto_mixed_precision(function, "auto")


def _own_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    def body(*given: Any) -> Any:
        with region():
            return function(*given)

    return _own(body)(*inputs)


def _own_closed_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    a = ops.ones((2, 2))
    with region():
        _own(lambda x: ops.matmul(x, x))(a)
        return function(*inputs)


def _own_between(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region():
        return _own_around(function, region, inputs)


WAYS = (
    Way("decorated function", "decorated", decorated, upstream=NO_KERNEL),
    Way("decorated construct", "decorated", _decorated_construct, upstream=NO_KERNEL),
    Way("decorated generator", "decorated", generator, upstream=NO_KERNEL),
    Way("decorated coroutine", "decorated", coroutine, upstream=NO_KERNEL),
    Way("in a thread", "eager", in_a_thread, gradients=False, upstream=NO_KERNEL),
    Way(
        "recompute, region inside",
        "recomputed",
        partial(_recomputed, around=False),
        upstream=RECORDS,
    ),
    Way(
        "recompute, region around",
        "recomputed",
        partial(_recomputed, around=True),
        upstream=RECORDS,
    ),
    Way("Cell.recompute", "recomputed", _recomputed_cell, upstream=RECORDS),
    Way("amp level auto around the region", "foreign AMP", _own_around, upstream=NO_KERNEL),
    Way(
        "amp level auto opened and closed inside before",
        "foreign AMP",
        _own_closed_inside,
        upstream=NO_KERNEL,
    ),
    Way("amp level auto between two regions", "foreign AMP", _own_between, upstream=NO_KERNEL),
)
