"""What TensorFlow's functions do without being asked; `data/operators.toml` holds it, with the explanations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Facts", "facts"]


@dataclass(frozen=True)
class Facts:
    """What TensorFlow's functions do without being asked.

    Attributes:
        thin: functions that come to one operation type of their own operation, which follows the rule by itself.
        transparent: layers and functions whose parts follow their own rules, unless a user's list names the whole.
        parts: for layers with an activation of the user's choice, the operations that belong to the layer itself.
        suspended: functions that no rule reaches, by module: making random numbers, updating variables.
        emulated, emulated_groups: operations, and groups of them, whose low precision is always emulated.
        synonyms: operations that are one function here with another, and the other.
        made_of: functions that come to operation types of several operations, which have rules of their own.
    """

    thin: frozenset[str]
    transparent: frozenset[str]
    parts: Mapping[str, frozenset[str]]
    suspended: Mapping[str, tuple[str, ...]]
    emulated: frozenset[str]
    emulated_groups: frozenset[str]
    synonyms: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """The facts, read from their data file."""
    data = tomllib.loads(resources.files("unamp_tensorflow").joinpath("data/operators.toml").read_text("utf-8"))
    return Facts(
        thin=frozenset(data["thin"]),
        transparent=frozenset(data["transparent"]),
        parts={op: frozenset(parts) for op, parts in data["parts"].items()},
        suspended={module: tuple(paths) for module, paths in data["suspended"].items()},
        emulated=frozenset(data["emulated"]["operations"]),
        emulated_groups=frozenset(data["emulated"]["groups"]),
        synonyms=data["synonyms"],
        made_of={function: tuple(ops) for function, ops in data["made_of"].items()},
    )
