"""The alignment of two runs pairs the records of the same operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unamp.tracing.aligning import _shortest_edit, aligned

RUNS = st.lists(st.sampled_from("abcd"), max_size=14)


def _longest_common(a: list[str], b: list[str]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            )
    return table[len(a)][len(b)]


@given(RUNS, RUNS)
def test_pairs_are_equal_and_do_not_cross(a: list[str], b: list[str]) -> None:
    pairs = aligned((a, b))
    assert all(a[i] == b[j] for i, j in pairs)
    assert pairs == sorted(set(pairs))
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert [j for _, j in pairs] == sorted(j for _, j in pairs)


@given(RUNS, RUNS)
def test_a_shortest_edit_keeps_as_many_as_can_be_kept(a: list[str], b: list[str]) -> None:
    assert len(_shortest_edit(a, b)[0]) == _longest_common(a, b)


@given(RUNS)
def test_a_run_is_aligned_with_itself(a: list[str]) -> None:
    assert aligned((a, a)) == [(n, n) for n in range(len(a))]


def test_much_that_one_run_has_alone_shifts_nothing() -> None:
    step = [f"op{n % 30}" for n in range(300)]
    more = [x for n in range(20) for x in ("scale", *step, *["backward"] * 500)]
    assert [i for i, _ in aligned((step * 20, more))] == list(range(6000))


def test_runs_with_little_in_common_end() -> None:
    left, right = [n * n % 31 for n in range(3000)], [n * n * n % 29 for n in range(3000)]
    pairs = aligned((left, right))
    assert pairs
    assert all(left[i] == right[j] for i, j in pairs)


def test_a_second_kind_of_key_pairs_what_lies_between() -> None:
    a, b = ["x1", "y1", "x2"], ["y9", "x1", "y8", "x2", "y7"]
    assert aligned((a, b)) == [(0, 1), (2, 3)]
    assert aligned((a, b), ([x[0] for x in a], [x[0] for x in b])) == [(0, 1), (1, 2), (2, 3)]
