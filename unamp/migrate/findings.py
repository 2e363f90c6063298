"""The findings of a migration in a file, and its result."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The kinds of findings, by what is left for a person to do."""

    MOVED = "moved"
    NOTE = "note"
    BY_HAND = "by hand"
    LOOK = "look here"
    HINT = "hint"

    @property
    def stays(self) -> bool:
        """Return whether it is still there after a migration was written."""
        return self not in (Kind.MOVED, Kind.NOTE)


class Finding(NamedTuple):
    """One spelling of mixed precision.

    Attributes:
        line, column: where it begins, from 1.
        kind: what happens to it.
        call: what stands there, shortened.
        framework: whose spelling it is; empty where that is not known.
        becomes: what is written in its place.
        why: why it cannot be moved, or what is different afterwards.
        hand: what to do by hand.
        cell: of a notebook, from 1; its lines are counted in the cell.
    """

    line: int
    column: int
    kind: Kind
    call: str
    framework: str = ""
    becomes: str = ""
    why: str = ""
    hand: str = ""
    cell: int = 0

    @property
    def place(self) -> str:
        """Return the place of the finding, for a message."""
        return f"{_cell(self.cell)}{self.line}:{self.column}"

    def __str__(self) -> str:
        arrow = f" -> {self.becomes}" if self.becomes else ""
        why = f": {self.why}" if self.why else ""
        hand = f"; {self.hand}" if self.hand else ""
        return f"{self.kind.value}: {self.call}{arrow}{why}{hand}"

    def to_data(self) -> dict[str, object]:
        """Return the finding as plain values."""
        return {**self._asdict(), "kind": self.kind.value}


class RegionPolicy(NamedTuple):
    """The policy that a region, or a network under a policy, comes to.

    Attributes:
        line: where it is opened.
        call: what stands there, shortened.
        framework: whose spelling it is.
        policy: the arguments of the `Policy`, as `Policy.to_data` has them; those that only a run
            knows have their default.
        unknown: the arguments that only a run knows, each with its expression.
        where: what the policy is for, where that is less than every operation in the region.
        cell: of a notebook, from 1; its lines are counted in the cell.
    """

    line: int
    call: str
    framework: str
    policy: dict[str, object]
    unknown: dict[str, str]
    where: str = ""
    cell: int = 0

    @property
    def place(self) -> str:
        """Return the place of the finding, for a message."""
        return f"{_cell(self.cell)}{self.line}"


def _cell(number: int) -> str:
    return f"cell {number}:" if number else ""


class FileResult(NamedTuple):
    """The outcome for one file's text: the new text, its findings, and its regions' policies."""

    text: str
    findings: list[Finding]
    regions: list[RegionPolicy]
