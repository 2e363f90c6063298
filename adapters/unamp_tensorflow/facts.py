"""Facts about TensorFlow's functions and layers, read from `data/operators.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about TensorFlow's functions: each is a key of the data file, which explains it."""

    thin: frozenset[str]
    decorated: frozenset[str]
    transparent: frozenset[str]
    coordinates: frozenset[str]
    drawing: Mapping[str, tuple[str, ...]]
    suspended: Mapping[str, tuple[str, ...]]
    distributions: Mapping[str, tuple[str, ...]]
    makers: Mapping[str, tuple[str, ...]]
    probabilities: Mapping[str, tuple[str, ...]]
    special: tuple[str, ...]
    calling_others: frozenset[str]
    common_dtypes: Mapping[str, tuple[str, ...]]
    emulated: Mapping[str, frozenset[str]]
    synonyms: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_tensorflow")
