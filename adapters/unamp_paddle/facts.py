"""Facts about Paddle's operations, read from `data/operators.toml`, which explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about Paddle's operations: each is a key of the data file, which explains it."""

    views: frozenset[str]
    left_alone: frozenset[str]
    transparent: frozenset[str]
    checks_dtypes: frozenset[str]
    alike: frozenset[str]
    filling: frozenset[str]
    names_indices: frozenset[str]
    legacy: frozenset[str]
    making_sparse: frozenset[str]
    synonyms: Mapping[str, str]
    sparse: Mapping[str, str]
    intermediate: Mapping[str, tuple[int, ...]]
    made_of: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_paddle")
