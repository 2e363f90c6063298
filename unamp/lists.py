"""Allow and deny lists as people write them: operations by any name, and words for many of them.

- ``"linear"``: an operation: a canonical name, any framework's spelling, or the framework's own
  object
- ``"group:norm"``: all operations of a group
- ``"linalg_*"``: all operations whose canonical name fits; ``*`` stands for any letters
- ``"*"``: every operation
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unamp.errors import shortened, unknown
from unamp.vocabulary import OPERATORS, Operation, spelling_of_object, vocabulary

#: The word for every operation.
EVERYTHING = "*"

_GROUP = "group:"

#: The mark in the name of a library's operator, between the library's name and the operator's.
_QUALIFIED = "::"

_UNREGISTERED = (
    "no operation {} is registered here, and no imported framework has an operator of that name; "
    "import what defines it, or unamp.register_operation it, before a list or a file names it"
)


class Entries(NamedTuple):
    """The operations of a list.

    Attributes:
        named: the operations that the list names one by one.
        meant: the operations that a word for many stands for.
        everything: whether the list has ``"*"``.
    """

    named: frozenset[str]
    meant: frozenset[str]
    everything: bool = False


def read(argument: str, entries: object, *, casts: bool = False) -> Entries:
    """Return the operations that a user's list holds, by canonical names.

    Args:
        argument: what the list is called, for messages.
        entries: the list, or a single entry.
        casts: whether the list may have casts and moves. A policy's may not, since they follow no
            list: there a word for many operations leaves them out.

    Raises:
        ValueError: for a name that no operation has, for a word that means none, and for a cast or
            a move.
        TypeError: for a value that is no entry of a list.
    """
    # Some single entries can be iterated over (torch.ops.aten.add lists its overloads), so a
    # callable is always one entry.
    if isinstance(entries, (str, bytes)) or callable(entries) or not isinstance(entries, Iterable):
        entries = (entries,)
    named: set[str] = set()
    meant: set[str] = set()
    everything = False
    for entry in entries:
        if entry == EVERYTHING and isinstance(entry, str):
            everything = True
        elif isinstance(entry, str) and is_word(entry):
            meant.update(_followed(argument, entry, _meant(argument, entry), casts))
        else:
            named.update(_followed(argument, entry, [operation_name(argument, entry)], casts))
    # A collective name (interpolate) stands for each of its members as well.
    for found in (named, meant):
        found.update([member for op in found for member in vocabulary()[op].members])
    return Entries(frozenset(named), frozenset(meant), everything)


def is_word(entry: str) -> bool:
    """Return whether an entry is a word for many operations."""
    return entry.startswith(_GROUP) or EVERYTHING in entry


def operation_name(argument: str, entry: object, prefer: str | None = None) -> str:
    """Return the canonical name of one operation; for `prefer` see `Vocabulary.resolve`."""
    known = vocabulary()
    if isinstance(entry, str) and (entry in known or _QUALIFIED not in entry):
        return known.resolve(entry, prefer)
    spelling = spelling_of_object(entry)
    if spelling is None and isinstance(entry, str):
        raise ValueError(_UNREGISTERED.format(shortened(entry)))
    if spelling is None:
        raise TypeError(
            f"{argument} takes operation names, or a framework's functions, layer classes and "
            f"primitives; got {type(entry).__name__}: {shortened(entry)}"
        )
    framework, _, operator = spelling.partition(".")
    if _QUALIFIED in operator and operator not in known.spelled(framework):
        known.add(Operation(operator, OPERATORS, spellings={framework: (operator,)}))
    return known.resolve(spelling)


def words(operations: Sequence[str]) -> tuple[str, ...]:
    """Return operations as a person would write them, with one word for a complete group."""
    there, groups = set(operations), vocabulary().groups
    whole = [
        group for group, members in groups.items() if len(members) > 1 and there.issuperset(members)
    ]
    said = {op for group in whole for op in groups[group]}
    return (*(f"{_GROUP}{group}" for group in whole), *(op for op in operations if op not in said))


def _followed(argument: str, entry: object, ops: Iterable[str], casts: bool) -> list[str]:
    """Return the operations of an entry, without casts and moves unless `casts`."""
    found = [op for op in ops if casts or not vocabulary()[op].is_cast]
    if not found:
        moves = ", ".join(vocabulary().groups["cast"])
        raise ValueError(
            f"{argument}: {shortened(entry)} is a cast or a move ({moves}), which follows no list: "
            "the call itself says the dtype or the device. Leave it out, and list the operation "
            "that computes with its result"
        )
    return found


def _meant(argument: str, word: str) -> Iterable[str]:
    groups = vocabulary().groups
    if word.startswith(_GROUP):
        group = word.removeprefix(_GROUP)
        if group not in groups:
            raise ValueError(unknown(f"group in {argument}", group, groups))
        return groups[group]
    from fnmatch import translate  # slow to import, and few lists have such a word
    from re import compile

    fits = compile(translate(word.replace("[", "[[]").replace("?", "[?]"))).match
    found = [op for op in vocabulary() if fits(op)]
    if not found:
        raise ValueError(
            f"{argument}: no operation is called {shortened(word)}; `unamp ops` lists all of them"
        )
    return found
