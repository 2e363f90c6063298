"""Facts about PyTorch's operators; `data/operators.toml` holds them, with the explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from unamp.adapter.facts import read_facts
from unamp.adapter.versions import major_minor


@dataclass(frozen=True)
class Facts:
    """Facts about PyTorch's operators.

    Attributes:
        own_namespaces: the namespaces of operators that PyTorch itself brings.
        inner: operators that are no entry points.
        promotes: operations that compute inputs of differing dtypes in the widest one by themselves.
        answers: operations that answer inputs of differing dtypes in another dtype than the widest.
        chooses: operations that only choose between others, by an argument, with those.
        bypassing: operators that are called past the operation that they belong to, with the operations that they are made of.
        made_of: operations that are computed with others, which have rules of their own.
        functions: operations that have an operator and a public function in Python that does without it: where that is.
        no_kernel: for each device type and low dtype, operations without a kernel for it, forward or backward, in any version.
        kernel_since: likewise, operations that got theirs in some version, with that version.
    """

    own_namespaces: frozenset[str]
    inner: frozenset[str]
    promotes: frozenset[str]
    answers: frozenset[str]
    chooses: Mapping[str, tuple[str, ...]]
    bypassing: Mapping[str, tuple[str, ...]]
    made_of: Mapping[str, tuple[str, ...]]
    functions: Mapping[str, tuple[str, ...]]
    no_kernel: Mapping[str, Mapping[str, frozenset[str]]]
    kernel_since: Mapping[str, Mapping[str, Mapping[str, str]]]

    @cached_property
    def lacking(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """For each device type and low dtype, the operations without a kernel for it in the version that is installed."""
        installed = major_minor(torch.__version__)
        found = {}
        for device, dtypes in self.no_kernel.items():
            for dtype, ops in dtypes.items():
                since = self.kernel_since.get(device, {}).get(dtype, {})
                found[device, dtype] = ops | {op for op, version in since.items() if installed < major_minor(version)}
        return found


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_torch")
