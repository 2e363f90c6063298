"""Draw items from a plan: for a brief run, or for a sample.

A sample is for slow machines, where even a brief run takes too long.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from unamp.presets import PRESETS
from unamp_conformance.run.plan import Item, Selection

__all__ = ["OPERATIONS", "READ", "brief", "drawn", "met", "sample", "told"]

#: The number of operations in a brief run.
OPERATIONS = 60

#: The number of operations that a brief run reads for an absent device: a framework decides them
#: in the same way for all of its devices.
READ = 30


def drawn(items: Sequence[Item], selection: Selection, *, few: bool = False) -> list[Item]:
    """Return the items of a plan that are run, in the plan's order: all, or the drawn ones.

    Args:
        items: the plan.
        selection: the user's selection.
        few: in a brief run, draw only as many networks as each network, level and dtype needs to
            be met once, and `READ` operations.
    """
    if few and selection.brief:
        networks = [item for item in items if item.kind != "operation"]
        return sample(networks, 1, selection.seed) + _drawn_operations(items, selection.seed, READ)
    if selection.sample:
        return sample(items, selection.sample, selection.seed)
    return brief(items, selection.seed) if selection.brief else list(items)


def brief(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items of a brief run.

    They are all networks under the default preset, `OPERATIONS` operations, and at least one item
    for every kind of check, network, level, dtype and way.

    Args:
        items: the plan.
        seed: the seed of the draw.
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
    """Return some items of a plan, in its order.

    There is at least one for every kind of check, network, level, dtype and way.

    Args:
        items: the plan.
        number: the number of items to draw; there are more where that needs more.
        seed: the seed of the draw.
    """
    chosen = _with_all_met(items, seed)
    others = [index for index in _by_lot(items, seed) if index not in chosen]
    chosen.update(others[: max(0, number - len(chosen))])
    return [items[index] for index in sorted(chosen)]


def met(item: Item) -> Iterator[tuple[str, str]]:
    """Yield each kind of check, network, level, dtype and way that an item covers."""
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
    """Return a line about a draw: the numbers of items drawn and of all, and the seed."""
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
    """Return the chosen items, and more, until all that `met` yields for the plan is covered."""
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
    """Return an item's random number, which depends only on its name and the seed.

    All frameworks draw the same items.
    """
    # the dtypes of a probe differ between frameworks: policies are no part of the name there
    policies = () if item.kind == "operation" else item.policies
    return random.Random(
        " ".join((str(seed), item.kind, item.subject, item.way, *policies))
    ).random()
