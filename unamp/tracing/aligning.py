"""Align two runs: which operation of one is which of the other, in the order in which they ran.

What one run has and the other has not (a product more, a step that was skipped) is left over, and
shifts nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from unamp._grouping import grouped

Pair = tuple[int, int]

#: How far ahead both runs are looked at. What lies further apart than that in two runs is not the
#: same operation.
_WINDOW = 2048
#: How many items a window may have left over before the best way so far is taken: for runs with
#: little in common.
_EDITS = 128


def aligned(*keyed: tuple[Sequence[Hashable], Sequence[Hashable]]) -> list[Pair]:
    """Return the places of items that are equal in both runs, in order; no two pairs cross.

    Args:
        keyed: what each item of the one run is, and of the other. First equal keys of the first
            kind are paired, and what lies between two pairs by the second kind, and so on.

    First what came up equally often in both is held fast, as far as it came up in the same order
    (patience diff). What lies between is aligned by a shortest edit script: Myers, An O(ND)
    difference algorithm and its variations, Algorithmica 1 (1986),
    https://doi.org/10.1007/BF01840446, in windows, so that long runs take linear time.
    """
    pairs: list[Pair] = []
    for left, right in keyed:
        for find in (_anchors, _between):
            fixed = [(-1, -1), *pairs, (len(left), len(right))]
            pairs = []
            for (i, j), (k, m) in pairwise(fixed):
                pairs += [(i, j), *find(left, right, i + 1, k, j + 1, m)]
            del pairs[0]
    return pairs


def _anchors(
    a: Sequence[Hashable], b: Sequence[Hashable], i: int, k: int, j: int, m: int
) -> list[Pair]:
    """Return the most uncrossed pairs of items as frequent in `a[i:k]` as in `b[j:m]`."""
    places_a, places_b = grouped(range(i, k), a.__getitem__), grouped(range(j, m), b.__getitem__)
    pairs = [
        pair
        for key, places in places_a.items()
        if len(places) == len(places_b.get(key, ()))
        for pair in zip(places, places_b[key], strict=True)
    ]
    pairs.sort()
    # A longest increasing subsequence: by length, the pair that ends the one with the smallest end.
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for n, (_, y) in enumerate(pairs):
        length = bisect_left(ends, y)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(y)
            last.append(n)
        else:
            ends[length], last[length] = y, n
    chain, n = [], last[-1] if last else -1
    while n >= 0:
        chain.append(pairs[n])
        n = before[n]
    return chain[::-1]


def _between(
    a: Sequence[Hashable], b: Sequence[Hashable], i: int, k: int, j: int, m: int
) -> Iterator[Pair]:
    """Yield the pairs of equal items in `a[i:k]` and `b[j:m]`, a window after the other."""
    while i < k and j < m:
        if a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        window_a, window_b = a[i : min(i + _WINDOW, k)], b[j : min(j + _WINDOW, m)]
        if set(window_a).isdisjoint(window_b):
            i, j = i + len(window_a), j + len(window_b)
            continue
        found, complete = _shortest_edit(window_a, window_b)
        at_end = complete and i + len(window_a) == k and j + len(window_b) == m
        # What is found near the end of a window might be found better with more to look at.
        settled = found if at_end else found[: max(1, len(found) // 2)]
        for x, y in settled:
            yield i + x, j + y
        if at_end:
            return
        x, y = settled[-1] if settled else (_EDITS // 2, _EDITS // 2)
        i, j = i + x + 1, j + y + 1


def _shortest_edit(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[list[Pair], bool]:
    """Return the pairs kept by a shortest edit script from `a` to `b`, and whether it is whole."""
    n, m = len(a), len(b)
    furthest = {1: 0}  # how far along `a` each diagonal is reached
    history: list[dict[int, int]] = []
    for edits in range(n + m + 1):
        history.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= n and y >= m:
                return _kept(history, n, m), True
        if edits == _EDITS:
            reached = [
                (x, x - diagonal) for diagonal, x in furthest.items() if (diagonal - edits) % 2 == 0
            ]
            return _kept(
                history, *max((end for end in reached if end[0] <= n and end[1] <= m), key=sum)
            ), False
    raise AssertionError("an edit script of every item always exists")


def _kept(history: list[dict[int, int]], x: int, y: int) -> list[Pair]:
    """Return the pairs along the way back from the end."""
    pairs: list[Pair] = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, diagonal = history[edits], x - y
        down = diagonal == -edits or (
            diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        before = diagonal + 1 if down else diagonal - 1
        start_x = furthest[before] if edits else 0
        start_y = start_x - before if edits else 0
        moved_x, moved_y = (start_x, start_y + 1) if down else (start_x + 1, start_y)
        if not edits:
            moved_x = moved_y = 0
        while x > moved_x and y > moved_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start_x, start_y
    return pairs[::-1]
