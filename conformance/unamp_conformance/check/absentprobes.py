"""The probe of one operation on an absent device: its program tells the precision.

`unamp_conformance.check.opchecks` looks at it as at any other probe. Its findings come from dtypes;
no number is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from unamp.adapter import Operations
from unamp.adapter.absent_devices import AbsentDevice, Computed, Programs, Unreadable
from unamp.vocabulary import vocabulary
from unamp_conformance.check.absentchecks import misfit
from unamp_conformance.check.cases import Case
from unamp_conformance.check.classify import PRECISIONS
from unamp_conformance.check.probes import (
    Finding,
    Prepare,
    Probe,
    Region,
    Run,
    feeder,
    feeder_in,
    put,
)
from unamp_conformance.check.rounding import Low

__all__ = ["AbsentProbe"]

#: The groups of operations whose products must be low where the policy says low. Others may compute
#: products of low numbers in float32: those of a library that has no low dtype, or of an attention
#: that is written out.
_PRODUCTS = frozenset({"conv", "matmul", "recurrent"})


class AbsentProbe(Probe):
    """One operation of one framework on a device that is not here.

    Args:
        case: its example call.
        operations: the framework's namespace.
        device: the device.
    """

    #: Low inputs that are only moved keep a dtype that tells.
    moves = False

    def __init__(self, case: Case, operations: Operations, device: AbsentDevice) -> None:
        super().__init__(case, operations)
        self._absent = device

    def ready(self) -> None:
        """Do nothing: whether inputs tell the precisions apart is a matter of numbers."""

    def unreadable(self, precision: str, feed: str, low: str) -> Unreadable | None:
        """Return why the device has no program even outside of regions, or None where it has one.

        The program is the one for inputs in `precision`.
        """
        backward = self.case.backward and feed == "float32"
        try:
            for gradients in dict.fromkeys((False, backward)):
                self._programs(
                    feeder_in(self.case, feed, low, precision), nullcontext, gradients=gradients
                )
        except Exception as error:
            return self._absent.unreadable(error)
        return None

    def look(self, region: Region, feed: str = "float32", low: str = "bfloat16") -> list[Finding]:
        """Read the operation's program in a region and report its dtypes; see `Probe.look`."""
        backward = self.case.backward and feed == "float32"
        programs, dtype = self._programs(feeder(self.case, feed, low), region, gradients=backward)
        if not self._sensitive:
            return [Finding("forward", None, dtype)]
        findings = [
            Finding("forward", self._precisions(c for c in programs.there if not c.backward), dtype)
        ]
        if (precisions := self._precisions(c for c in programs.there if c.backward)) is not None:
            findings.append(Finding("backward", precisions, ""))
        if programs.cpu is not None and (
            differing := _dtypes(programs.there) ^ _dtypes(programs.cpu)
        ):
            note = f"on the device or on the CPU, not on both: {'; '.join(sorted(differing))}"
            findings.append(Finding("program", frozenset(), "", note))
        return findings

    def look_again(self, region: Region) -> list[Finding]:
        """Return nothing: from one call to the next only numbers change."""
        return []

    @cached_property
    def _apart(self) -> frozenset[str]:
        """The floating dtypes of inputs that no policy casts."""
        inputs = self._inputs(0)
        cast = self.case.eligible(inputs)
        return frozenset(
            a.dtype.name for n, a in enumerate(inputs) if a.dtype.kind == "f" and n not in cast
        )

    def _precisions(self, program: Iterable[Computed]) -> frozenset[str] | None:
        """Return the precisions that a program is consistent with.

        None where nothing in it tells: constants do not.
        """
        found = [
            c
            for c in program
            if c.place and c.kind != "result" and (c.entered or c.kind == "product")
        ]
        return frozenset(p for p in PRECISIONS if self._fits(found, p)) if found else None

    def _fits(self, program: Sequence[Computed], precision: str) -> bool:
        met = precision == "float32" or any(
            c.backward or precision in (*c.entered, *c.operands) for c in program
        )
        return met and not any(self._misfit(computed, precision) for computed in program)

    def _misfit(self, computed: Computed, precision: str) -> str:
        if vocabulary()[self.case.op].group not in _PRODUCTS and computed.kind == "product":
            computed = computed._replace(kind="reduction")
        # Sums of gradients are made in float32 where the input was float32.
        summed = computed.backward and computed.kind != "product"
        entered = tuple(dtype for dtype in computed.entered if dtype not in self._apart)
        return misfit(
            computed._replace(entered=entered),
            frozenset({precision} | ({"float32"} if summed else set())),
        )

    def _run(self, draw: int, prepare: Prepare, *_: Any, **__: Any) -> Run:
        """Return the dtype that the operation gives outside of regions, without numbers."""
        _, dtype = self._programs(prepare, nullcontext)
        return Run(np.empty(0), dtype)

    def _programs(
        self, prepare: Prepare, region: Region, *, gradients: bool = False
    ) -> tuple[Programs, str]:
        """Return the programs of the operation in a region, and the dtype of its result."""
        ops, case = self._operations, self.case
        fed = prepare(self._inputs(0))
        arrays = [each.values if isinstance(each, Low) else each for each in fed]
        places = case.differentiable(self._inputs(0)) if gradients else []
        rest = [n for n in range(len(fed)) if n not in places]
        seen: list[str] = []

        def called(leaves: Sequence[Any], others: Sequence[Any], buffers: Sequence[Any]) -> Any:
            tensors = put(others, rest, put(leaves, places, fed))
            tensors = [
                ops["cast"](t, f.dtype) if isinstance(f, Low) else t
                for t, f in zip(tensors, fed, strict=True)
            ]
            with region(), self._absent.place(case.op):
                result = case.call(ops[case.op], tensors)
            picked = self._pick(result)
            seen.append(ops.dtype(picked) if hasattr(picked, "shape") else type(picked).__name__)
            if not places:
                return result
            real = self._real(picked, "float32")
            return ops["sum"](ops["mul"](real, real))

        programs = self._absent.read(
            called, [arrays[n] for n in places], [arrays[n] for n in rest], []
        )
        return programs, seen[-1]


def _dtypes(program: Iterable[Computed]) -> set[str]:
    """Return the dtypes that a program takes and gives, in words.

    Kernels are left out: each device has its own.
    """
    return {
        f"{'backward ' * c.backward}{' '.join(c.operands)} -> {' '.join(c.results)}"
        for c in program
        if c.place and c.kind != "result"
    }
