"""Facts about PyTorch's operators; `data/operators.toml` holds them, with the explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from unamp.adapter.facts import read_facts
from unamp.adapter.plans import is_listed
from unamp.adapter.versions import major_minor
from unamp.policy import Policy


@dataclass(frozen=True)
class Facts:
    """Facts about PyTorch's operators: each is a key of the data file, which explains it."""

    own_namespaces: frozenset[str]
    inner: frozenset[str]
    promotes: frozenset[str]
    promotes_since: Mapping[str, str]
    answers: frozenset[str]
    answers_before: Mapping[str, str]
    float16_on_cuda: frozenset[str]
    chooses: Mapping[str, tuple[str, ...]]
    bypassing: Mapping[str, tuple[str, ...]]
    made_of: Mapping[str, tuple[str, ...]]
    besides: Mapping[str, tuple[str, ...]]
    functions: Mapping[str, tuple[str, ...]]
    no_kernel: Mapping[str, Mapping[str, frozenset[str]]]
    kernel_since: Mapping[str, Mapping[str, Mapping[str, str]]]

    @cached_property
    def promoting(self) -> frozenset[str]:
        """The operations that promote in the version that is installed."""
        return self.promotes - {
            op for op, version in self.promotes_since.items() if _is_older_than(version)
        }

    @cached_property
    def answering(self) -> frozenset[str]:
        """The operations that answer in another dtype than the widest in the installed version."""
        return self.answers | {
            op for op, version in self.answers_before.items() if _is_older_than(version)
        }

    @cached_property
    def lacking(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The operations that the installed version has no kernel for, by device and dtype."""
        found = {}
        for device, dtypes in self.no_kernel.items():
            for dtype, ops in dtypes.items():
                since = self.kernel_since.get(device, {}).get(dtype, {})
                found[device, dtype] = ops | {
                    op for op, version in since.items() if _is_older_than(version)
                }
        return found


def follows_parts(policy: Policy, op: str) -> bool:
    """Return whether an operation only chooses others by an argument, as `pad` by its mode.

    The rules of the others hold then.
    """
    chosen = facts().chooses.get(op, ())
    return any(policy.rules[other] is not policy.rules[op] for other in chosen) and not is_listed(
        policy, op
    )


def _is_older_than(version: str) -> bool:
    return major_minor(torch.__version__) < major_minor(version)


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp_torch")
