"""The draw of a sample from a plan, where there is no time for all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from unamp_conformance.plan import Item

__all__ = ["drawn", "met"]


def drawn(items: Sequence[Item], number: int, seed: int) -> list[Item]:
    """Return some items of a plan, in its order: those that every kind of check, network, level and way needs, and more.

    An item's lot depends on its name and the seed alone, so that frameworks with the same items draw the same ones.

    Args:
        items: the plan.
        number: how many to draw; where not everything is met with so many, there are more.
        seed: another one draws others.
    """
    lots = sorted(range(len(items)), key=lambda index: (_lot(items[index], seed), index))
    missing = {part for item in items for part in met(item)}
    chosen: list[int] = []
    for index in lots:
        if found := missing.intersection(met(items[index])):
            missing -= found
            chosen.append(index)
    needed = set(chosen)
    chosen += [index for index in lots if index not in needed][: max(0, number - len(chosen))]
    return [items[index] for index in sorted(chosen)]


def met(item: Item) -> Iterator[tuple[str, str]]:
    """Yield each kind of check, network, level and way that an item looks at."""
    for check in item.checks:
        yield "check", check
    if item.kind == "network":
        yield "network", item.subject
    if item.way:
        yield f"way for {item.kind}", item.way
    for policy in item.policies.values():
        yield "level", policy.level


def _lot(item: Item, seed: int) -> float:
    return random.Random(" ".join((str(seed), item.kind, item.subject, item.way, *item.policies))).random()
