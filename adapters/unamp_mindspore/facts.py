"""Facts about MindSpore's operations; `data/operators.toml` holds them, with the explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unamp.adapter.facts import read_facts


@dataclass(frozen=True)
class Facts:
    """Facts about MindSpore's operations.

    Attributes:
        views: operations that run natively in every dtype on the CPU: they return a view, or move data only.
        transparent: layers whose parts follow their own rules, unless a user's list names the layer itself.
        left_alone: functions that no rule reaches.
        methods: methods of a Tensor whose operation has another name.
        in_place: methods that change their tensor, and those that give the same as a new one.
        functions: for the example calls of conformance, the function that the CPU has a kernel for.
        erratic: operations that end the process, or come to another result with every call.
        axis: of those functions, the ones that call `axis` what PyTorch calls `dim`.
    """

    views: frozenset[str]
    transparent: frozenset[str]
    left_alone: frozenset[str]
    methods: Mapping[str, str]
    in_place: Mapping[str, str]
    functions: Mapping[str, str]
    erratic: frozenset[str]
    axis: frozenset[str]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_mindspore")
