"""An example call for every operation, in its canonical signature: PyTorch's.

The calls are data, in ``cases/*.toml``. Each entry of ``case`` holds:

- ``ops``: the operations that are called this way;
- ``args``: positional arguments: a string such as ``"normal 4x8"`` is an array (see
  `unamp_conformance.check.arrays`), a list of them a list of tensors, anything else an attribute;
- ``kw``: attributes by keyword;
- ``cast``: which of the floating arrays a policy casts, counted from 0; all of them unless said
  (the parameters and running statistics of a norm stay float32);
- ``backward``: false where there is no gradient to look at;
- ``out``: which of the results is looked at; the first floating one unless said;
- ``insensitive``: why the result's numbers cannot tell the precision. Then only its dtype is looked
  at;
- ``layer``: true for a layer made of operations that have rules of their own: it is looked at only
  where a policy names it;
- ``undetermined``: true where the result is random, or memory as it was found, or one of several
  that are right: frameworks need not come to the same numbers;
- ``own_dtype``: true where some framework's result has a dtype that does not follow the inputs';
  where it follows them outside of regions, it is looked at nevertheless;
- ``unordered``: true where the order of the results along the last axis is not determined: they are
  compared sorted;
- ``reference``: ``"float32"`` where frameworks have the operation in no higher precision.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from unamp_conformance.check import arrays

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """One operation's example call; see the module's docstring."""

    op: str
    args: tuple[Any, ...]
    kw: Mapping[str, Any] = field(default_factory=dict)
    cast: tuple[int, ...] | None = None
    backward: bool = True
    out: int | None = None
    insensitive: str = ""
    layer: bool = False
    own_dtype: bool = False
    unordered: bool = False
    undetermined: bool = False
    reference: str = "float64"

    def inputs(self, draw: int) -> list[np.ndarray]:
        """Return the arrays of the call, flat, for one draw of random numbers."""
        return [
            arrays.make(spec, f"{self.op}/{draw}", n) for n, spec in enumerate(_specs(self.args))
        ]

    @property
    def subnormal(self) -> bool:
        """Return whether some of the call's numbers are subnormal."""
        return any(spec.startswith("tiny ") for spec in _specs(self.args))

    def eligible(self, inputs: Sequence[np.ndarray]) -> list[int]:
        """Return the arrays that a policy casts: places in ``inputs``."""
        floating = [n for n, array in enumerate(inputs) if array.dtype == np.float32]
        return floating if self.cast is None else [floating[n] for n in self.cast]

    def differentiable(self, inputs: Sequence[np.ndarray]) -> list[int]:
        """Return the arrays whose gradients are looked at.

        They are the arrays that a policy casts and that rounding changes.
        """
        specs = _specs(self.args)
        return [n for n in self.eligible(inputs) if arrays.carries_precision(specs[n])]

    def call(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call a framework's function with tensors in the places of the arrays."""
        remaining = iter(tensors)
        return function(*(_fill(argument, remaining) for argument in self.args), **self.kw)


@cache
def cases() -> Mapping[str, Case]:
    """Return every operation's case by its canonical name."""
    found: dict[str, Case] = {}
    for file in sorted(
        resources.files(__package__).joinpath("cases").iterdir(), key=lambda f: f.name
    ):
        for entry in tomllib.loads(file.read_text("utf-8"))["case"]:
            found.update(_read(entry, file.name))
    return found


def _read(entry: dict[str, Any], where: str) -> dict[str, Case]:
    ops = entry.pop("ops")
    args = tuple(entry.pop("args"))
    cast = tuple(entry.pop("cast")) if "cast" in entry else None
    try:
        return {op: Case(op, args, cast=cast, **entry) for op in ops}
    except TypeError as error:
        raise ValueError(f"{where}: {', '.join(ops)}: {error}") from error


def _specs(args: Sequence[Any]) -> list[str]:
    specs: list[str] = []
    for argument in args:
        if arrays.is_spec(argument):
            specs.append(argument)
        elif isinstance(argument, list):
            specs.extend(_specs(argument))
    return specs


def _fill(argument: Any, tensors: Any) -> Any:
    if arrays.is_spec(argument):
        return next(tensors)
    if isinstance(argument, list):
        return [_fill(part, tensors) for part in argument]
    return argument
