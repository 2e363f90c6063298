"""Facts about the functions, primitives and layers of JAX and its libraries.

`data/operators.toml` holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about functions, primitives and layers, each by a key of the data file.

    The file explains its keys.
    """

    left: frozenset[str]
    transparent: frozenset[str]
    divisible: frozenset[str]
    parts: Mapping[str, frozenset[str]]
    suspended: Mapping[str, tuple[str, ...]]
    drawn: Mapping[str, tuple[str, ...]]
    emulated: Mapping[str, frozenset[str]]
    ranks: Mapping[str, Mapping[str, str]]
    synonyms: Mapping[str, str]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_jax")
