"""What PyTorch's operators do without being asked; `data/operators.toml` holds it, with the explanations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from unamp.adapter import release

__all__ = ["Facts", "facts"]


@dataclass(frozen=True)
class Facts:
    """What PyTorch's operators do without being asked.

    Attributes:
        inner: operators that are no entry points.
        promotes: operations that compute inputs of differing dtypes in the widest one by themselves.
        chooses: operations that only choose between others, by an argument, with those.
        made_of: operations that are computed with others, which have rules of their own.
        functions: operations that have an operator and a public function in Python that does without it: where that is.
        no_kernel: for each device type and low dtype, operations without a kernel for it, forward or backward, in the version
            of PyTorch that is installed.
    """

    inner: frozenset[str]
    promotes: frozenset[str]
    chooses: Mapping[str, tuple[str, ...]]
    made_of: Mapping[str, tuple[str, ...]]
    functions: Mapping[str, tuple[str, ...]]
    no_kernel: Mapping[tuple[str, str], frozenset[str]]


@cache
def facts() -> Facts:
    """The facts, read from their data file."""
    data = tomllib.loads(resources.files("unamp_torch").joinpath("data/operators.toml").read_text("utf-8"))
    return Facts(
        inner=frozenset(data["inner"]),
        promotes=frozenset(data["promotes"]),
        chooses={op: tuple(chosen) for op, chosen in data["chooses"].items()},
        made_of={op: tuple(parts) for op, parts in data["made_of"].items()},
        functions={op: tuple(places) for op, places in data["functions"].items()},
        no_kernel={
            (device, dtype): frozenset(ops) | _not_yet(data["kernel_since"].get(device, {}).get(dtype, {}))
            for device, table in data["no_kernel"].items()
            for dtype, ops in table.items()
        },
    )


def _not_yet(kernel_since: Mapping[str, str]) -> frozenset[str]:
    """The operations that got their kernels in a later version than the one that is installed."""
    return frozenset(op for op, since in kernel_since.items() if release(torch.__version__) < release(since))
