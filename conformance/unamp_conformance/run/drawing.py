"""The draw of some items from a plan: of a brief run, or of a sample.

A sample is for runs without time for more.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from unamp.presets import PRESETS
from unamp_conformance.run.plan import Item, Selection

__all__ = ["OPERATIONS", "READ", "brief", "drawn", "met", "sample", "told"]

#: How many operations a brief run draws.
OPERATIONS = 60

#: How many it draws for a device that is not here: a framework's operations show the same on all
#: its devices.
READ = 30


def drawn(items: Sequence[Item], selection: Selection, *, few: bool = False) -> list[Item]:
    """Return the items of a plan that are run, in its order: all, or as many as are drawn.

    Args:
        items: the plan.
        selection: what was asked for.
        few: in a brief run, draw only as many items as meet every network, level and dtype, and
            `READ` operations.
    """
    if few and selection.brief:
        networks = [item for item in items if item.kind != "operation"]
        return sample(networks, 1, selection.seed) + _drawn_operations(items, selection.seed, READ)
    if selection.sample:
        return sample(items, selection.sample, selection.seed)
    return brief(items, selection.seed) if selection.brief else list(items)


def brief(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items of a brief run: a matrix, `OPERATIONS` operations, and a few others.

    The matrix is that of networks under the default preset. The others are as many as it takes to
    meet every kind of check, network, level, dtype and way at least once.

    Args:
        items: the plan.
        seed: the seed of the draw; another one draws other items.
    """
    matrix = [
        index
        for index, item in enumerate(items)
        if item.kind == "network" and _of_default_preset(item)
    ]
    chosen = _with_all_met(items, seed, matrix)
    others = [
        index
        for index in _by_lot(items, seed)
        if items[index].kind == "operation" and index not in chosen
    ]
    chosen.update(
        others[: max(0, OPERATIONS - sum(items[index].kind == "operation" for index in chosen))]
    )
    return [items[index] for index in sorted(chosen)]


def sample(items: Sequence[Item], number: int, seed: int) -> list[Item]:
    """Return some items of a plan, in its order, so that everything is met.

    Every kind of check, network, level, dtype and way is met at least once.

    Args:
        items: the plan.
        number: how many to draw; more are drawn where so many do not meet everything.
        seed: the seed of the draw; another one draws other items.
    """
    chosen = _with_all_met(items, seed)
    others = [index for index in _by_lot(items, seed) if index not in chosen]
    chosen.update(others[: max(0, number - len(chosen))])
    return [items[index] for index in sorted(chosen)]


def met(item: Item) -> Iterator[tuple[str, str]]:
    """Yield each kind of check, network, level, dtype and way that an item looks at."""
    for check in item.checks:
        yield "check", check
    if item.kind == "network":
        yield "network", item.subject
    if item.way:
        yield f"way for {item.kind}", item.way
    for policy in item.policies.values():
        yield "level", policy.level
        yield "dtype", policy.dtype


def told(items: Sequence[Item], plan: Sequence[Item], seed: int) -> str:
    """Return a line about a draw: the counts of drawn and of all items, and the seed."""
    of = (
        [f"{_operations(items):,} of {_operations(plan):,} operations"] if _operations(plan) else []
    )
    return ", ".join([*of, f"{len(items):,} of {len(plan):,} items", f"seed {seed}"])


def _operations(items: Sequence[Item]) -> int:
    return sum(item.kind == "operation" for item in items)


def _drawn_operations(items: Sequence[Item], seed: int, number: int) -> list[Item]:
    chosen = [index for index in _by_lot(items, seed) if items[index].kind == "operation"][:number]
    return [items[index] for index in sorted(chosen)]


def _of_default_preset(item: Item) -> bool:
    return all(policy.preset == PRESETS[0] for policy in item.policies.values())


def _with_all_met(items: Sequence[Item], seed: int, chosen: Collection[int] = ()) -> set[int]:
    """Return the chosen items, and more of them until all that `met` yields is met."""
    more = set(chosen)
    missing = {part for item in items for part in met(item)}.difference(
        *(met(items[index]) for index in more)
    )
    for index in _by_lot(items, seed):
        if found := missing.intersection(met(items[index])):
            missing -= found
            more.add(index)
    return more


def _by_lot(items: Sequence[Item], seed: int) -> list[int]:
    return sorted(range(len(items)), key=lambda index: (_lot(items[index], seed), index))


def _lot(item: Item, seed: int) -> float:
    """Return the lot of an item, by its name and the seed alone.

    So all frameworks draw the same items.
    """
    # not all frameworks probe an operation in the same dtypes
    policies = () if item.kind == "operation" else item.policies
    return random.Random(
        " ".join((str(seed), item.kind, item.subject, item.way, *policies))
    ).random()
