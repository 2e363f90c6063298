"""The vocabulary: every operation's canonical name and its spellings in each framework.

The data is `data/vocabulary.toml`; this module loads it once, when first asked, and resolves spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from unamp._data import load_table

__all__ = ["FRAMEWORKS", "KEEPS_ITS_MEANING", "Operation", "Vocabulary", "vocabulary"]

#: The frameworks (and NVIDIA apex, whose lists are a preset) that the vocabulary has spellings for.
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "apex")

#: Groups whose operations no level casts: an explicit entry of a preset or of the user still does.
KEEPS_ITS_MEANING = frozenset({"shape", "creation", "random", "cast", "comparison"})


#: Where inside a framework a name may stand that the vocabulary has without it (``torch.Tensor.add``).
_INSIDE = ("", "Tensor.", "ops.aten.")


class Operation(NamedTuple):
    """One operation of the vocabulary.

    Attributes:
        name: the canonical name, the common functional spelling.
        group: the family it belongs to (``"matmul"``, ``"norm"``, ``"shape"``, ...).
        parts: operations that it computes with; a user's ``deny`` of a part denies the whole.
        spellings: for each framework its spellings, relative to the framework's package.
        members: operations that it is a collective name for; a rule for it is a rule for each of them.
    """

    name: str
    group: str
    parts: tuple[str, ...] = ()
    spellings: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    members: tuple[str, ...] = ()

    @property
    def keeps_its_meaning(self) -> bool:
        """Whether a level's rule for "all other operations" leaves it alone (casts, creation, random, shape-only)."""
        return self.group in KEEPS_ITS_MEANING


class Vocabulary(Mapping[str, Operation]):
    """All operations by canonical name, with `resolve` for every other spelling."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = MappingProxyType(dict(operations))
        self._spelled: dict[str, dict[str, str]] = {framework: {} for framework in FRAMEWORKS}
        for op in self._operations.values():
            for framework, spellings in op.spellings.items():
                for spelling in spellings:
                    self._spelled[framework][spelling] = op.name

    def __getitem__(self, name: str) -> Operation:
        return self._operations[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def resolve(self, name: str, prefer: str | None = None) -> str:
        """The canonical name for any spelling.

        Args:
            name: a canonical name (``"matmul"``), a framework's spelling (``"matmul_v2"``, ``"AddV2"``, ``"nn.Dense"``), or one
                with the framework in front (``"paddle.matmul_v2"``, ``"torch.nn.functional.linear"``).
            prefer: a framework whose spelling is meant where a bare name could be several operations.

        Raises:
            ValueError: for a name that nobody knows (the message has the closest known ones) and for one that means
                different operations in different frameworks (the message lists them).
        """
        if prefer is not None and (found := self._spelled[prefer].get(name)):
            return found
        if name in self._operations:
            return name
        head, _, tail = name.partition(".")
        head = {"tf": "tensorflow", "ms": "mindspore"}.get(head, head)
        if head in self._spelled:
            for inner in _INSIDE:
                if found := self._spelled[head].get(tail.removeprefix(inner)):
                    return found
        meanings = {framework: table[name] for framework, table in self._spelled.items() if name in table}
        if len(set(meanings.values())) == 1:
            return next(iter(meanings.values()))
        if meanings:
            listed = ", ".join(f"{framework}.{name} is {op!r}" for framework, op in meanings.items())
            raise ValueError(f"operation {name!r} means several things: {listed}; write the one you mean")
        raise ValueError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        import difflib  # slow to import, and only an error needs it

        known = set(self._operations).union(*self._spelled.values())
        short = name.rsplit(".", 1)[-1]
        near = difflib.get_close_matches(name, known, 3) or difflib.get_close_matches(short, known, 3)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "`unamp ops` lists all of them"
        return f"unknown operation {name!r}; {hint}"


@cache
def vocabulary() -> Vocabulary:
    """The vocabulary, read from its data file on the first call."""
    return Vocabulary({name: _operation(name, entry) for name, entry in load_table("vocabulary.toml")["ops"].items()})


def _operation(name: str, entry: Mapping[str, Any]) -> Operation:
    spellings = {framework: tuple(entry[framework]) for framework in FRAMEWORKS if framework in entry}
    return Operation(name, entry["group"], tuple(entry.get("parts", ())), spellings, tuple(entry.get("members", ())))
