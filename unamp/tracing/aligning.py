"""Align two runs: find the operations that both have, in the order in which they ran.

An operation that only one run has (one more product, a step that the other skipped) stays
unpaired, and shifts no other pair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from unamp._grouping import grouped

Pair = tuple[int, int]

#: The number of items of each run that are aligned at a time. Two operations that lie further apart
#: are not paired.
_WINDOW = 2048
#: The most unpaired items in a window; then the best way so far is taken. It bounds the time for
#: runs that have little in common.
_EDITS = 128


def aligned(*keyed: tuple[Sequence[Hashable], Sequence[Hashable]]) -> list[Pair]:
    """Return the positions of items that are equal in both runs, in order; no two pairs cross.

    Keys that are equally frequent in both runs are paired first, where their order is the same
    (patience diff). Between these pairs, the items are aligned by a shortest edit script: Myers,
    An O(ND) difference algorithm and its variations, Algorithmica 1 (1986),
    https://doi.org/10.1007/BF01840446. It works in windows, so that long runs take linear time.

    Args:
        keyed: for each kind of key, the keys of both runs' items. Items are paired by the first
            kind; between two pairs, the items left are paired by the second kind, and so on.
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
    """Return the most pairs that do not cross, of items as frequent in `a[i:k]` as in `b[j:m]`."""
    places_a, places_b = grouped(range(i, k), a.__getitem__), grouped(range(j, m), b.__getitem__)
    pairs = [
        pair
        for key, places in places_a.items()
        if len(places) == len(places_b.get(key, ()))
        for pair in zip(places, places_b[key], strict=True)
    ]
    pairs.sort()
    # A longest increasing subsequence: `ends` has the smallest end of each length, `last` its pair.
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
    """Yield the pairs of equal items in `a[i:k]` and `b[j:m]`, one window after another."""
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
        # Items behind the window could change the pairs near its end: only half of them is taken.
        settled = found if at_end else found[: max(1, len(found) // 2)]
        for x, y in settled:
            yield i + x, j + y
        if at_end:
            return
        x, y = settled[-1] if settled else (_EDITS // 2, _EDITS // 2)
        i, j = i + x + 1, j + y + 1


def _shortest_edit(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[list[Pair], bool]:
    """Return the pairs kept by a shortest edit script, and whether it reaches both ends."""
    n, m = len(a), len(b)
    furthest = {1: 0}  # the position in `a` that each diagonal reaches
    history: list[dict[int, int]] = []
    for edits in range(n + m + 1):
        history.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = _goes_down(furthest, diagonal, edits)
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


def _goes_down(furthest: dict[int, int], diagonal: int, edits: int) -> bool:
    """Return whether the furthest path to a diagonal comes from the diagonal above."""
    return diagonal == -edits or (
        diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
    )


def _kept(history: list[dict[int, int]], x: int, y: int) -> list[Pair]:
    """Return the pairs on an edit script's path, followed back from its end (`x`, `y`)."""
    pairs: list[Pair] = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, diagonal = history[edits], x - y
        down = _goes_down(furthest, diagonal, edits)
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
