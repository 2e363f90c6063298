"""Facts about Paddle's operations, of `data/operators.toml`, which explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """The things that Paddle's operations do without being asked.

    Attributes:
        views: forward functions that return a view, which must share memory in eager mode.
        left_alone: forward functions that no rule reaches: communication, optimizers, printing, the runner of programs.
        checks_dtypes: functions in Python that refuse, or convert, tensors of some dtypes.
        synonyms: operations that are one function here with another, and the other.
        filling: forward functions that fill their tensor with random numbers, whatever it holds.
        legacy: functions of `paddle._legacy_C_ops` that the vocabulary does not name, and that compute in float32.
        sparse: forward functions of sparse tensors, and the operation that they are, where their name does not say it.
        intermediate: places among the results of forward functions that only their gradients read.
        made_of: functions in Python that compute with several operations, which have rules of their own.
        transparent: layers and functions whose parts follow their own rules, unless a user's list names the composite.
    """

    views: frozenset[str]
    left_alone: frozenset[str]
    transparent: frozenset[str]
    checks_dtypes: frozenset[str]
    filling: frozenset[str]
    legacy: frozenset[str]
    synonyms: Mapping[str, str]
    sparse: Mapping[str, str]
    intermediate: Mapping[str, tuple[int, ...]]
    made_of: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_paddle")
