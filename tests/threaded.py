"""Threads with policies of their own, all at the same time.

Each framework's folder tests them with its own operations.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import unamp
from unamp import Policy, Rule, policy_region

POLICIES = [
    None, Policy(), Policy("O1", "bfloat16"), Policy("O2"), Policy("O2", "bfloat16"),
    Policy("O1", deny="matmul"), Policy("O3", "bfloat16"), Policy("OD"),
]  # fmt: skip


def every_thread_has_its_own_policy(dtypes: Callable[[], Sequence[str]], rounds: int) -> None:
    """Check eight threads that open and close regions, over and over.

    Args:
        dtypes: computes a `matmul`, an `add` and a `linear` of float32 tensors, and returns the
            names of the results' dtypes.
        rounds: the number of rounds, unless the environment sets it.
    """
    wrong, rounds = [], int(os.environ.get("UNAMP_STRESS_ROUNDS", rounds))

    def work(policy: Policy | None) -> None:
        try:
            for _ in range(rounds):
                if policy is None:
                    found, expected = dtypes(), ["float32"] * 3
                else:
                    with policy_region(policy):
                        found = dtypes()
                    rules = [policy.decide(op) for op in ("matmul", "add", "linear")]
                    expected = [policy.dtype if rule is Rule.LOW else "float32" for rule in rules]
                if list(found) != expected:
                    wrong.append((policy, found))
        except Exception as error:
            wrong.append((policy, repr(error)))

    threads = [threading.Thread(target=work, args=(policy,)) for policy in POLICIES]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


#: A policy, and the results of operations under it.
Case = tuple[Policy, list[Any]]


def regions_of_all_threads_stay_apart(
    cases: Sequence[Case], start: Callable[[], Callable[[Case, Case], str]]
) -> None:
    """Check eight threads that open a region and another inside it, and leave both, over and over.

    Each thread has an order of its own.

    Args:
        cases: the policies.
        start: called in each thread; returns a function that checks two cases, the second inside
            the first, and returns the fault.
    """
    rounds = int(os.environ.get("UNAMP_STRESS_ROUNDS", "100"))
    problems: list[str] = []
    done = [0] * 8

    def work(number: int) -> None:
        try:
            check = start()
            for case in itertools.islice(itertools.cycle(cases), number * 3, number * 3 + rounds):
                if problems:
                    break
                if wrong := check(case, cases[(number + done[number]) % len(cases)]):
                    problems.append(f"{case[0]}: {wrong}")
                done[number] += 1
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems, problems[:3]
    assert done == [rounds] * 8


@contextmanager
def open_in_another_thread(policy: Policy, report: Callable[[], Any]) -> Iterator[list[Any]]:
    """Keep a region open in another thread meanwhile.

    At the end, that thread appends its report to the list.
    """
    opened, done, seen = threading.Event(), threading.Event(), list[Any]()

    def other() -> None:
        try:
            with policy_region(policy):
                opened.set()
                done.wait()
                seen.append(report())
        finally:
            opened.set()

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def coroutines_have_their_own_policies(added: Callable[[], str]) -> None:
    """Check three coroutines that take turns.

    `added` adds two tensors, and returns the name of the result's dtype.
    """

    async def run(policy: Policy, expected: str) -> None:
        @policy_region(policy)
        async def steps() -> list[str]:
            found = []
            for _ in range(5):
                found.append(added())
                await asyncio.sleep(0)
            return found

        assert await steps() == [expected] * 5

    async def all_three() -> None:
        await asyncio.gather(
            run(Policy("O1", "bfloat16", allow="add"), "bfloat16"),
            run(Policy("O1", "float16", allow="add"), "float16"),
            run(Policy(enabled=False), "float32"),
        )
        assert unamp.current_policy() is None

    asyncio.run(all_three())
