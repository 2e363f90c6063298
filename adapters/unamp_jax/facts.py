"""Facts about the functions, primitives and layers of JAX and its libraries; `data/operators.toml` holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about the functions, primitives and layers of JAX and its libraries.

    Attributes:
        left: primitives of the vocabulary's whose operands need not agree, and which no rule reaches.
        transparent: layers and functions whose parts follow their own rules, unless a user's list names the whole operation;
            an operation, or one of its spellings.
        divisible: operations whose parts follow their own rules where a user denies one of them.
        parts: for layers with an activation of the user's choice, the operations that belong to the layer itself.
        suspended: functions that no rule reaches, by module: random numbers, initial values, updates.
        drawn: random draws in `jax.random`, with the parameters of the distribution: low ones are widened.
        emulated: the ``operations``, and the ``groups`` of them, that have no kernel in low dtypes.
        ranks: operations of one function for every rank, by the rank of its first argument.
        synonyms: operations that are one function here with another, and the other.
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
