"""Facts about MindSpore's operations, read from `data/operators.toml`, which explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about MindSpore's operations: each is a key of the data file, which explains it."""

    views: frozenset[str]
    transparent: frozenset[str]
    left_alone: frozenset[str]
    methods: Mapping[str, str]
    in_place: Mapping[str, str]
    changing: frozenset[str]
    functions: Mapping[str, str]
    erratic: frozenset[str]
    axis: frozenset[str]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_mindspore")
