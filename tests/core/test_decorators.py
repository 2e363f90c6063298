"""A region decorates functions, generators and coroutines: in force while they run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from unamp import Policy, autocast, current_policy, policy_region

O1, O2, OFF = Policy("O1", "bfloat16"), Policy("O2", "bfloat16"), Policy(enabled=False)


def test_decorated_function(fake: Any) -> None:
    @policy_region(O1)
    def f(a: int, *, b: int = 2) -> tuple[object, int]:
        """Do f."""
        return current_policy(), a + b

    assert f(1, b=4) == (O1, 5)
    assert (f.__name__, f.__doc__) == ("f", "Do f.")
    assert str(inspect.signature(f)) == "(a: 'int', *, b: 'int' = 2) -> 'tuple[object, int]'"
    assert current_policy() is None


def test_decorated_method_recursion_and_exception(fake: Any) -> None:
    class Model:
        @autocast(dtype="bfloat16", level="O2")
        def forward(self, depth: int) -> int:
            assert len(fake.in_force) == 4 - depth
            if depth == 0:
                raise LookupError(str(self))
            return self.forward(depth - 1)

        @staticmethod
        @policy_region(O2)
        def static() -> object:
            return current_policy()

        @classmethod
        @policy_region(O2)
        def of_class(cls) -> object:
            return current_policy()

    with pytest.raises(LookupError):
        Model().forward(3)
    assert fake.in_force == []
    assert Model.static() == Model.of_class() == O2


def test_static_and_class_methods_stay_what_they_are() -> None:
    class Model:
        @policy_region(O2)
        @staticmethod
        def static(x: int) -> tuple[object, int]:
            return current_policy(), x

        @policy_region(O2)
        @classmethod
        def of_class(cls, x: int) -> tuple[object, type, int]:
            return current_policy(), cls, x

    assert Model.static(1) == Model().static(1) == (O2, 1)
    assert Model.of_class(1) == Model().of_class(1) == (O2, Model, 1)


def test_decorated_objects_run_as_their_class_says() -> None:
    class Later:
        async def __call__(self) -> object:
            await asyncio.sleep(0)
            return current_policy()

    class Steps:
        def __call__(self) -> Iterator[object]:
            yield current_policy()

    assert asyncio.run(policy_region(O1)(Later())()) == O1
    assert asyncio.run(policy_region(O1)(functools.partial(Later()))()) == O1
    assert list(policy_region(O1)(Steps())()) == [O1]


def test_decorated_generator_is_in_force_while_it_runs_and_not_in_between(fake: Any) -> None:
    seen: list[object] = []

    @policy_region(O1)
    def numbers() -> Iterator[Any]:
        received = yield current_policy()
        seen.append(received)
        try:
            yield current_policy()
        except LookupError as error:
            seen.append(error)
        try:
            yield current_policy()
        finally:
            seen.append(current_policy())
        return "result"

    assert inspect.isgeneratorfunction(numbers)
    generator = numbers()
    assert next(generator) == O1
    assert current_policy() is None
    assert generator.send("sent") == O1
    error = LookupError()
    assert generator.throw(error) == O1
    assert fake.in_force == []
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "result"
    assert seen == ["sent", error, O1]


def test_decorated_generator_closes_under_its_policy(fake: Any) -> None:
    seen: list[object] = []

    @policy_region(O1)
    def forever() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            seen.append(current_policy())

    generator = forever()
    next(generator)
    generator.close()
    abandoned = forever()
    next(abandoned)
    del abandoned
    gc.collect()
    assert seen == [O1, O1]
    assert fake.in_force == []


def test_decorated_generator_delegates_with_yield_from() -> None:
    @policy_region(O1)
    def inner() -> Iterator[Any]:
        return (yield current_policy())

    @policy_region(O2)
    def outer() -> Iterator[Any]:
        yield current_policy()
        yield (yield from inner())
        yield current_policy()

    generator = outer()
    assert [next(generator), next(generator), generator.send("sent"), next(generator)] == [
        O2,
        O1,
        "sent",
        O2,
    ]


def test_regions_inside_a_decorated_function_that_waits_wait_with_it(fake: Any) -> None:
    seen: list[object] = []

    def steps() -> Iterator[Any]:
        with policy_region(O2):
            with policy_region(OFF), contextlib.suppress(LookupError):
                yield current_policy()
            yield current_policy()
        yield current_policy()

    async def coroutine() -> None:
        with policy_region(O2):
            await asyncio.sleep(0)
            seen.append(current_policy())
        seen.append(current_policy())

    async def asynchronous() -> AsyncIterator[Any]:
        with policy_region(O2):
            yield current_policy()
            await asyncio.sleep(0)
            yield current_policy()
        yield current_policy()

    async def bystander() -> None:
        for _ in range(3):
            assert current_policy() is None
            await asyncio.sleep(0)

    async def main() -> list[object]:
        await asyncio.gather(policy_region(O1)(coroutine)(), bystander())
        given = []
        async for policy in policy_region(O1)(asynchronous)():
            assert current_policy() is None
            given.append(policy)
        return given

    generator, other = policy_region(O1)(steps)(), policy_region(O1)(steps)()
    assert (next(generator), next(other)) == (OFF, OFF)
    assert current_policy() is None
    assert (generator.throw(LookupError()), next(other)) == (O2, O2)
    assert (next(generator), fake.in_force) == (O1, [])
    other.close()
    assert asyncio.run(main()) == [O2, O2, O1]
    assert seen == [O2, O1]
    assert (current_policy(), fake.in_force) == (None, [])


def test_decorated_coroutine_does_not_leak_into_other_tasks(fake: Any) -> None:
    seen: list[object] = []

    @policy_region(O1)
    async def under_policy() -> str:
        for _ in range(3):
            seen.append(current_policy())
            await asyncio.sleep(0)
        return "result"

    async def bystander() -> None:
        for _ in range(3):
            assert current_policy() is None
            await asyncio.sleep(0)

    async def main() -> list[object]:
        return await asyncio.gather(under_policy(), bystander(), under_policy())

    assert inspect.iscoroutinefunction(under_policy)
    assert asyncio.run(main()) == ["result", None, "result"]
    assert seen == [O1] * 6
    assert fake.in_force == []


def test_decorated_coroutine_is_cancelled_under_its_policy() -> None:
    seen: list[object] = []

    @policy_region(O1)
    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(current_policy())

    async def main() -> None:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == [O1]


def test_decorated_async_generator(fake: Any) -> None:
    seen: list[object] = []

    @policy_region(O1)
    async def numbers() -> AsyncIterator[Any]:
        try:
            await asyncio.sleep(0)
            received = yield current_policy()
            seen.append(received)
            try:
                yield current_policy()
            except LookupError as error:
                seen.append(error)
            yield current_policy()
        finally:
            await asyncio.sleep(0)
            seen.append(current_policy())

    async def main() -> None:
        generator: Any = numbers()
        assert await anext(generator) == O1
        assert current_policy() is None
        assert await generator.asend("sent") == O1
        error = LookupError()
        assert await generator.athrow(error) == O1
        with pytest.raises(StopAsyncIteration):
            await anext(generator)
        closed: Any = numbers()
        await anext(closed)
        await closed.aclose()
        assert current_policy() is None
        assert seen == ["sent", error, O1, O1]

    assert inspect.isasyncgenfunction(numbers)
    asyncio.run(main())
    assert fake.in_force == []


@pytest.mark.parametrize("target", [3, None, "forward", int, Policy])
def test_only_functions_are_decorated(target: Any) -> None:
    with pytest.raises(TypeError, match="a region decorates functions and methods, not"):
        policy_region(O1)(target)
