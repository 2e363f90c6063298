"""The vocabulary: every operation's canonical name and its spellings in each framework.

The data is `data/vocabulary.toml`; this module loads it once, when first asked, and resolves
spellings. It holds the spellings of the frameworks that presets come from. An adapter of another
framework brings its own along: see `unamp._spelling_files`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, ValuesView
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from unamp._data import load_table
from unamp.errors import AdapterError, nearest, shortened

#: The frameworks (and NVIDIA apex, whose lists are a preset) that the data file has spellings for.
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "apex")

#: The group of operations that users register, and that of libraries' operators that nobody has
#: registered.
REGISTERED, OPERATORS = "registered", "operator"

#: Groups whose operations no level casts: an explicit entry of a preset or of the user still does.
KEEPS_ITS_MEANING = frozenset({"shape", "creation", "random", "cast", "comparison", OPERATORS})

#: Prefixes that a name may have inside a framework, and that the vocabulary leaves out
#: (``torch.Tensor.add``).
_INSIDE = ("", "Tensor.", "ops.aten.")

#: Functions that return the spelling of a framework's own function, layer class or primitive, and
#: None for an object that they do not know. The registry of adapters adds its own, since the
#: vocabulary must not import adapters.
NAMERS: list[Callable[[object], str | None]] = []


def spelling_of_object(value: object) -> str | None:
    """Return a spelling from the first of `NAMERS` that knows an object; None where none does."""
    return next((spelling for name in NAMERS if (spelling := name(value))), None)


#: The usual short names of imported packages, each with its framework and the path inside that.
_HEADS = {
    "tf": ("tensorflow", ""),
    "ms": ("mindspore", ""),
    "jnp": ("jax", "numpy."),
    "lax": ("jax", "lax."),
    "nnx": ("jax", "flax.nnx."),
    "eqx": ("jax", "equinox."),
}


class Operation(NamedTuple):
    """One operation of the vocabulary.

    Attributes:
        name: the canonical name, the common functional spelling.
        group: the family it belongs to (``"matmul"``, ``"norm"``, ``"shape"``, ...).
        parts: operations that it computes with; a user's ``deny`` of a part denies the whole.
        spellings: for each framework its spellings, relative to the framework's package.
        members: operations that it is a collective name for; a rule for it is a rule for each.
        registered: for one that a user registered, the rule that presets with lists give it; empty
            for all others.
    """

    name: str
    group: str
    parts: tuple[str, ...] = ()
    spellings: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    members: tuple[str, ...] = ()
    registered: str = ""

    @property
    def is_added(self) -> bool:
        """Return whether the operation is a user's own, or an operator of somebody's library."""
        return bool(self.registered) or self.group == OPERATORS

    @property
    def keeps_its_meaning(self) -> bool:
        """Return whether a level's rule for "all other operations" leaves it alone.

        It does so for every group of `KEEPS_ITS_MEANING`.
        """
        return self.group in KEEPS_ITS_MEANING

    @property
    def is_cast(self) -> bool:
        """Return whether the operation is a cast or a move.

        Its call states the dtype or the device, and no list or level changes that.
        """
        return self.group == "cast"


class Vocabulary(Mapping[str, Operation]):
    """All operations by canonical name, with `resolve` for every other spelling.

    Attributes:
        generation: a number that changes when operations are added or removed: a part of the key of
            what is made of them and kept.
    """

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self.generation = 0
        self._changing = threading.Lock()
        self._operations = dict(operations)
        self._spelled: dict[str, dict[str, str]] = {framework: {} for framework in FRAMEWORKS}
        for op in self._operations.values():
            for framework, spellings in op.spellings.items():
                self._spelled.setdefault(framework, {}).update(dict.fromkeys(spellings, op.name))

    def __getitem__(self, name: str) -> Operation:
        return self._operations[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def values(self) -> ValuesView[Operation]:
        """Return the operations. `Mapping`'s own method would search for each."""
        return self._operations.values()

    def add(self, operation: Operation) -> None:
        """Add an operation that is no framework's: a user's own, or an operator of a library.

        Raises:
            ValueError: where the name or a spelling is another operation's already.
        """
        for framework, spellings in operation.spellings.items():
            for word in spellings:
                if (known := self.spelled(framework).get(word, operation.name)) != operation.name:
                    raise ValueError(f"{framework}.{word} is the operation {known!r} already")
        with self._changing:  # another thread may be in the middle of a loop over the old ones
            self._operations = {**self._operations, operation.name: operation}
            for framework, spellings in operation.spellings.items():
                spelled = {**self.spelled(framework), **dict.fromkeys(spellings, operation.name)}
                self._spelled = {**self._spelled, framework: spelled}
            self.generation += 1

    def remove(self, name: str) -> None:
        """Forget an operation that was added."""
        with self._changing:
            self._operations = {
                known: operation for known, operation in self._operations.items() if known != name
            }
            self._spelled = {
                framework: {word: known for word, known in table.items() if known != name}
                for framework, table in self._spelled.items()
            }
            self.generation += 1

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The operations of each group."""
        found: dict[str, list[str]] = {}
        for op in self._operations.values():
            found.setdefault(op.group, []).append(op.name)
        return {group: tuple(ops) for group, ops in found.items()}

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that there are spellings for, those of the data file first."""
        return tuple(self._spelled)

    def spelled(self, framework: str) -> Mapping[str, str]:
        """Return the operation for each of a framework's spellings; empty where none are known."""
        return MappingProxyType(self._spelled.get(framework, {}))

    def add_spellings(self, framework: str, package: str) -> None:
        """Add the spellings that an adapter's package brings along.

        The package may bring none, and those added before stay.

        Raises:
            AdapterError: for a bad file, and for a spelling that is another operation's already.
                Nothing is taken then.
        """
        # slow to import, and most programs have no such adapter
        from unamp._spelling_files import read_spellings

        brought = read_spellings(framework, package, self._operations.keys())
        if brought is None:
            return
        own = dict(self._spelled.get(framework, {}))
        for op, words in brought.items():
            for word in words:
                if own.setdefault(word, op) != op:
                    raise AdapterError(
                        f"{package} spells {framework}.{word} as {op!r}; "
                        f"it is {own[word]!r} already"
                    )
        changed = {}
        for op, words in brought.items():
            entry = self._operations[op]
            known = entry.spellings.get(framework, ())
            spellings = {**entry.spellings, framework: tuple(dict.fromkeys((*known, *words)))}
            changed[op] = entry._replace(spellings=spellings)
        with self._changing:
            self._spelled, self._operations = (
                {**self._spelled, framework: own},
                {**self._operations, **changed},
            )

    def resolve(self, name: str, prefer: str | None = None) -> str:
        """Return the canonical name for any spelling.

        Args:
            name: a canonical name (``"matmul"``), a framework's spelling (``"matmul_v2"``,
                ``"AddV2"``, ``"nn.Dense"``), or one with the framework in front
                (``"paddle.matmul_v2"``, ``"torch.nn.functional.linear"``).
            prefer: a framework whose spelling is meant where a bare name is ambiguous.

        Raises:
            ValueError: for an unknown name (the message has the closest known ones), and for one
                that means different operations in different frameworks (the message lists them).
        """
        if prefer is not None and (found := self._spelled[prefer].get(name)):
            return found
        if name in self._operations:
            return name
        head, _, tail = name.partition(".")
        head, inside = _HEADS.get(head, (head, ""))
        if head in self._spelled:
            for inner in _INSIDE:
                if found := self._spelled[head].get(inside + tail.removeprefix(inner)):
                    return found
        meanings = {
            framework: table[name] for framework, table in self._spelled.items() if name in table
        }
        # A spelling that an adapter brings must not make a known word ambiguous: it counts only
        # where no framework of the data file has that word.
        meanings = {
            framework: op for framework, op in meanings.items() if framework in FRAMEWORKS
        } or meanings
        if len(set(meanings.values())) == 1:
            return next(iter(meanings.values()))
        if meanings:
            listed = ", ".join(
                f"{framework}.{name} is {op!r}" for framework, op in meanings.items()
            )
            raise ValueError(
                f"operation {shortened(name)} means several things: {listed}; "
                "write the one you mean"
            )
        raise ValueError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        known = set(self._operations).union(*self._spelled.values())
        if len(name) > 2 * max(map(len, known)):
            # no known name was meant, and a search for the nearest would take long
            return f"unknown operation {shortened(name)}; `unamp ops` lists all of them"
        hint = nearest(name, known) or nearest(
            name.rsplit(".", 1)[-1], known, "`unamp ops` lists all of them"
        )
        return f"unknown operation {shortened(name)}; {hint}"


@cache
def vocabulary() -> Vocabulary:
    """Return the vocabulary; the first call reads its data file and those of installed adapters."""
    with _reading:
        # two threads that are first must get one vocabulary: additions to a second would be lost
        return _read()


_reading = threading.RLock()


@cache
def _read() -> Vocabulary:
    read = Vocabulary(
        {
            name: _operation(name, entry)
            for name, entry in load_table("vocabulary.toml")["ops"].items()
        }
    )
    from unamp._entry_points import entry_points

    for point in entry_points("unamp.adapters"):
        if point.name not in FRAMEWORKS:
            # The error for a bad file comes where that adapter is registered: programs that do not
            # use its framework go on.
            with suppress(AdapterError):
                read.add_spellings(point.name, point.module)
    return read


_KEYS = {"group", "parts", "members", *FRAMEWORKS}


def _operation(name: str, entry: Mapping[str, Any]) -> Operation:
    if unknown := entry.keys() - _KEYS:
        valid = ", ".join(sorted(_KEYS))
        raise ValueError(
            f"vocabulary.toml: [ops.{name}] has the unknown key {min(unknown)!r}; valid: {valid}"
        )
    spellings = {
        framework: tuple(entry[framework]) for framework in FRAMEWORKS if framework in entry
    }
    return Operation(
        name,
        entry["group"],
        tuple(entry.get("parts", ())),
        spellings,
        tuple(entry.get("members", ())),
    )
