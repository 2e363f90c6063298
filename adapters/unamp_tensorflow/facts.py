"""Facts about TensorFlow's functions and layers; `data/operators.toml` holds them, with the explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about TensorFlow's functions and layers.

    Attributes:
        thin: functions that come to one operation type of their own operation, which follows the rule by itself.
        decorated: functions behind a decorator, of which the function behind it is patched.
        transparent: layers and functions whose parts follow their own rules, unless a user's list names the whole operation.
        coordinates: those of the transparent ones of whose parts the ones in the operation's own group alone follow rules.
        drawing: functions that make random numbers and that no rule reaches, by module.
        suspended: others that no rule reaches, by module: updating variables.
        emulated: the ``operations``, and the ``groups`` of them, whose low precision is always emulated; those ``on_cpu`` where
            there is no other device.
        synonyms: operations that are one function here with another, and the other.
        made_of: functions that come to operation types of several operations, which have rules of their own.
    """

    thin: frozenset[str]
    decorated: frozenset[str]
    transparent: frozenset[str]
    coordinates: frozenset[str]
    drawing: Mapping[str, tuple[str, ...]]
    suspended: Mapping[str, tuple[str, ...]]
    emulated: Mapping[str, frozenset[str]]
    synonyms: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_tensorflow")
