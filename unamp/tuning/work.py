"""The work of places: products and bytes, as one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unamp.adapter.records import OpRecord
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.tracing.work import Work, share, work_of
from unamp.tuning.places import Place

__all__ = ["shares", "summed", "widened_work"]


def widened_work(record: OpRecord) -> Work:
    """Return the work that an operation is in float32, so that low runs and float32 runs agree; none where it is not known."""
    wide = record._replace(
        inputs=tuple(map(_wide, record.inputs)),
        compute=_wide(record.compute) if record.compute else None,
        output=_wide(record.output) if record.output else None,
    )
    return work_of(wide) or Work()


def shares(amounts: Mapping[Place, Work], among: Iterable[Place]) -> dict[Place, float]:
    """Return for each place its share of the work of some places: half of it by products, half of it by bytes."""
    whole = summed(amounts[place] for place in among if place in amounts)
    return {place: share(amount, whole) for place, amount in amounts.items()}


def summed(amounts: Iterable[Work]) -> Work:
    """Return the sum of some work."""
    found = list(amounts)
    return Work(sum(work.products for work in found), sum(work.bytes for work in found))


def _wide(dtype: str) -> str:
    return FLOAT32 if dtype in LOW_DTYPES else dtype
