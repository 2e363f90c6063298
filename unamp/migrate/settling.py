"""Decide whether each import of a file stays, and adapt the decisions on its uses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import libcst as cst

from unamp.migrate.deciding import Decision, Outcome, Target
from unamp.migrate.names import Binding, Source, Use
from unamp.migrate.spellings import table

_TAKEN = "the name `unamp` is taken in this file"


class Fate(Enum):
    """The decision about a name that an import binds."""

    KEPT = "kept"
    MOVED = "moved"
    DROPPED = "dropped"


class Settled(NamedTuple):
    """The decisions about a file.

    Attributes:
        decisions: the decision about each use, after the imports were settled.
        fates: the decision about each binding.
        spelled_out: the uses that are written as a full path below `unamp.dialects`, because their
            import is kept.
    """

    decisions: Mapping[Use, Decision]
    fates: Mapping[Binding, Fate]
    spelled_out: frozenset[Use]


def settle(source: Source, decisions: dict[Use, Decision], target: Target) -> Settled:
    """Return the final decisions about a file, from the decisions about single uses.

    An import goes where all of its uses go. Where one of its uses has to stay, the import is kept,
    and its other uses are spelled out. A name that comes from several imports stays unless all of
    them go.
    """
    taken = _unamp_is_taken(source)
    if taken:
        for use, decision in decisions.items():
            if decision.outcome is Outcome.PLAIN:
                decisions[use] = Decision(
                    Outcome.STAYS, why=_TAKEN, hand="rename what is called so"
                )
    while True:
        fates = {binding: _fate(binding, source, decisions, target) for binding in source.bindings}
        spelled_out = frozenset(
            use for use, decision in decisions.items() if _is_spelled_out(use, decision, fates)
        )
        held = [use for use in spelled_out if use.several or taken]
        if not held:
            return Settled(decisions, fates, spelled_out)
        for use in held:
            why = _TAKEN if taken else "the name can come from another import, which stays"
            decisions[use] = Decision(
                Outcome.STAYS, why=why, hand="look which it is, and import it from unamp.dialects"
            )


def _fate(
    binding: Binding, source: Source, decisions: Mapping[Use, Decision], target: Target
) -> Fate:
    row = table().rows.get(binding.imported)
    if (row is None and binding.imported not in table().modules) or _binds_a_root(binding):
        return Fate.KEPT
    uses = [use for use in decisions if binding in use.bindings]
    count = source.accesses.get(binding, 0)
    if count != len(uses):
        return Fate.KEPT
    outcomes = {decisions[use].outcome for use in uses}
    if (row is not None and row.same) or (uses and outcomes == {Outcome.SAME}):
        return Fate.KEPT
    if outcomes == {Outcome.PLAIN} and not source.in_strings[binding]:
        return Fate.DROPPED
    dialect = table().dialect_of(binding.imported)
    if not dialect or Outcome.STAYS in outcomes:
        return Fate.KEPT
    if row is None and not all(
        decisions[u].outcome is Outcome.PLAIN or _is_in(u, binding, dialect) for u in uses
    ):
        return Fate.KEPT
    if row is not None and row.needs and not uses:
        return Fate.KEPT
    handed_on = not uses and target is Target.UNAMP and row is not None and row.form is not None
    return Fate.KEPT if handed_on else Fate.MOVED


def _is_in(use: Use, binding: Binding, dialect: str) -> bool:
    """Return whether a dialect has the name that a use takes from the framework's module."""
    leaf = use.name.rpartition(".")[2]
    row = table().rows.get(f"{binding.imported}.{leaf}")
    return row is not None and row.dialect == f"{dialect}.{leaf}"


def _binds_a_root(binding: Binding) -> bool:
    """Return whether an import binds a framework's root, as `import torch.cuda.amp` does.

    The file's other uses of the framework may come through that root.
    """
    return isinstance(binding.statement, cst.Import) and binding.alias.asname is None


def _is_spelled_out(use: Use, decision: Decision, fates: Mapping[Binding, Fate]) -> bool:
    return decision.outcome is Outcome.DIALECT and any(
        fates[binding] is Fate.KEPT for binding in use.bindings
    )


def _unamp_is_taken(source: Source) -> bool:
    return "unamp" in source.own or any(
        b.bound == "unamp" and b.imported.partition(".")[0] != "unamp" for b in source.bindings
    )
