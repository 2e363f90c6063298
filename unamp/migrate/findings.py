"""The findings of a migration in a file, and its result."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The kinds of findings, by the work that is left for a person."""

    MOVED = "moved"
    NOTE = "note"
    BY_HAND = "by hand"
    LOOK = "look here"
    HINT = "hint"

    @property
    def stays(self) -> bool:
        """Return whether the spelling is still there after the migration was written."""
        return self not in (Kind.MOVED, Kind.NOTE)


class Finding(NamedTuple):
    """One spelling of mixed precision.

    Attributes:
        line, column: the position, both from 1.
        kind: what happens to the spelling.
        call: the code, shortened.
        framework: the framework of the spelling; empty where it is not known.
        becomes: the code that replaces it.
        why: the reason why it cannot be moved, or the difference that the move makes.
        hand: what to do by hand.
        cell: the number of the notebook's cell, from 1; lines are counted within the cell.
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
    """The policy of a region, or of a network under a policy.

    Attributes:
        line: the line where the region is opened.
        call: the code, shortened.
        framework: the framework of the spelling.
        policy: the arguments of the `Policy`, as `Policy.to_data` has them. Arguments that only a
            run knows have their defaults.
        unknown: the arguments that only a run knows, each with its expression.
        where: the scope of the policy, where it is less than every operation in the region.
        cell: the number of the notebook's cell, from 1; lines are counted within the cell.
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
        """Return the place of the region, for a message."""
        return f"{_cell(self.cell)}{self.line}"


def _cell(number: int) -> str:
    return f"cell {number}:" if number else ""


class FileResult(NamedTuple):
    """The outcome for one file: the new text, the findings, and the regions' policies."""

    text: str
    findings: list[Finding]
    regions: list[RegionPolicy]
